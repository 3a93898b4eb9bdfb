"""What is not to stay under a name at the origin: the results of uploads that nobody wants any more, and versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tiercache.journal import StagedRecord, is_earlier_seal
from tiercache.model import Key, Kind, ObjectStat
from tiercache.origins.base import Origin, unfinished


class Leftover(NamedTuple):
    """What one retraction says of a name: there is nothing of ours that anybody should see."""

    key: Key
    etag: str
    upload_id: str
    link_target: bytes
    of_tree: bool
    """It is left of the move or removal of a directory, which has taken the name whatever is there."""

    @classmethod
    def of(cls, record: StagedRecord) -> Leftover:
        return cls(record.key, record.base_etag, record.upload_id, record.link_target, record.part_of is not None)

    def is_this(self, stat: ObjectStat) -> bool:
        """Whether it is what an origin tells of; of the upload a store's listing does not tell whose it is."""
        if self.of_tree:
            return True
        if stat.kind is Kind.DIRECTORY:
            return False
        if self.link_target and stat.link_target == self.link_target:
            return True
        if stat.attributes is None and (self.upload_id or self.link_target):
            return True
        return stat.etag == self.etag or _is_of(stat, self.upload_id)


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
        return stat.etag in self.etags or any(_is_of(stat, upload_id) for upload_id in self.upload_ids)

    def abort(self, origin: Origin, key: Key) -> None:
        """Remove what is there of uploads that did not come to their end."""
        for upload_id in self.upload_ids:
            origin.abort_uploads(key, upload_id)
        for parted_id in self.parted_ids:
            origin.abort_uploads(key, "", parted_id)


def _is_of(stat: ObjectStat, upload_id: str) -> bool:
    """Whether an upload, or one of an earlier seal of the same staged file, has brought it."""
    found = stat.upload_id.removesuffix(unfinished(""))
    return bool(found and upload_id) and (found == upload_id or is_earlier_seal(found, upload_id))
