"""What is not to stay under a name at the origin: the results of uploads that nobody wants any more, and versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tiercache.journal import StagedRecord, is_earlier_seal
from tiercache.model import Key, ObjectStat
from tiercache.origins.base import Origin, unfinished


class Unwanted(NamedTuple):
    """Of one name."""

    upload_ids: tuple[str, ...]
    """With each the earlier seals of the same staged file."""
    parted_ids: tuple[str, ...]
    """The store's ids of uploads in parts."""
    etags: frozenset[str]

    @classmethod
    def of(cls, retractions: Iterable[StagedRecord]) -> Unwanted:
        """All that these are to remove."""
        retractions = list(retractions)
        return cls(
            tuple(record.upload_id for record in retractions if record.upload_id),
            tuple(record.parted.id for record in retractions if record.parted is not None),
            frozenset(record.base_etag for record in retractions if record.base_etag),
        )

    def includes(self, stat: ObjectStat) -> bool:
        """Whether the origin has something of it."""
        found = stat.upload_id.removesuffix(unfinished(""))
        ours = any(found == upload_id or is_earlier_seal(found, upload_id) for upload_id in self.upload_ids)
        return stat.etag in self.etags or (bool(found) and ours)

    def abort(self, origin: Origin, key: Key) -> None:
        """Remove what is there of uploads that did not come to their end."""
        for upload_id in self.upload_ids:
            origin.abort_uploads(key, upload_id)
        for parted_id in self.parted_ids:
            origin.abort_uploads(key, "", parted_id)
