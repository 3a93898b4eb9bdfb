"""The durable list of staged files: what the origin does not have yet, and where it is to go."""

from tiercache.journal.journal import Journal
from tiercache.journal.records import (
    ConditionKind,
    DirectoryMove,
    OriginSource,
    StagedRecord,
    fresh_upload_id,
    is_earlier_seal,
    next_upload_id,
)

__all__ = [
    "ConditionKind",
    "DirectoryMove",
    "Journal",
    "OriginSource",
    "StagedRecord",
    "fresh_upload_id",
    "is_earlier_seal",
    "next_upload_id",
]
