"""The durable list of staged files: what the origin does not have yet, and where it is to go."""

from tiercache.journal.intents import Intent, Member, Phase
from tiercache.journal.journal import Journal
from tiercache.journal.records import (
    ConditionKind,
    DirectoryMove,
    OriginSource,
    StagedRecord,
    TreeChange,
    TreePart,
    fresh_upload_id,
    is_earlier_seal,
    next_upload_id,
)

__all__ = [
    "ConditionKind",
    "DirectoryMove",
    "Intent",
    "Journal",
    "Member",
    "OriginSource",
    "Phase",
    "StagedRecord",
    "TreeChange",
    "TreePart",
    "fresh_upload_id",
    "is_earlier_seal",
    "next_upload_id",
]
