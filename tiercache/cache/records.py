"""The catalog's version records, as a tier sees them: a catalog that fails is a catalog that does not know."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager

from tiercache.catalog import Catalog, Copy, VersionRecord
from tiercache.errors import TierCacheError
from tiercache.model import Tier, VersionId

log = logging.getLogger(__name__)


class Records:
    """Reads, writes and drops records; never raises for the catalog's sake (it can be rebuilt).

    A record that could not be dropped is caught later: its file is gone.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def find(self, version: VersionId) -> VersionRecord | None:
        try:
            return self._catalog.version(version)
        except TierCacheError as error:
            log.warning("cannot look up a version: %s", error)
            return None

    def put(self, version: VersionId, record: VersionRecord) -> bool:
        """Whether it was written."""
        try:
            self._catalog.put_version(version, record)
        except TierCacheError as error:
            log.warning("cannot record a version: %s", error)
            return False
        return True

    def drop(self, version: VersionId) -> None:
        try:
            self._catalog.drop_version(version)
        except TierCacheError as error:
            log.warning("cannot drop a version's record: %s", error)

    def all(self) -> Iterator[tuple[VersionId, VersionRecord]]:
        """Every record; here the catalog's errors are raised."""
        return self._catalog.versions()

    def batch(self) -> AbstractContextManager[None]:
        """Make the changes inside in one transaction."""
        return self._catalog.batch()


def copy_in(record: VersionRecord | None, tier: Tier) -> Copy | None:
    """The copy in one tier, if there is one."""
    if record is None:
        return None
    return next((copy for copy in record.copies if copy.tier == tier), None)
