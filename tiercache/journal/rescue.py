"""Read what a journal tells without owning it: nothing is written, and whatever can still be read counts."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import lmdb

from tiercache.journal.intents import decode_row
from tiercache.journal.journal import current_boot_id
from tiercache.journal.pending import read_pending
from tiercache.journal.records import DamagedRow, StagedRecord


class Rescued(NamedTuple):
    """What was found."""

    records: list[StagedRecord]
    """By id."""
    complaint: str
    """Why some of the journal could not be read; empty if all of it was."""


def read_journal(directory: Path) -> Rescued:
    """The records that an engine left, retractions included. Also of a copy of the directory, of one on a read-only
    disk, and of a damaged one."""
    rows, complaints = _rows(directory)
    changes, of_this_boot = read_pending(directory, current_boot_id())
    committed = set(rows)
    for change in changes:
        # After a power cut older changes may show themselves again: then what was committed is more likely the last.
        if of_this_boot or change.staged_id not in committed:
            rows[change.staged_id] = change.row
    records: dict[int, StagedRecord] = {}
    for staged_id, row in rows.items():
        if row is None:
            continue
        try:
            found = decode_row(row)
        except DamagedRow as error:
            complaints.append(f"row {staged_id}: {error}")
            continue
        if isinstance(found, StagedRecord):
            records[staged_id] = found
    return Rescued([records[staged_id] for staged_id in sorted(records)], "; ".join(complaints))


def _rows(directory: Path) -> tuple[dict[int, bytes | None], list[str]]:
    try:
        with lmdb.open(str(directory), readonly=True, lock=False, create=False, max_dbs=2) as env:
            table = env.open_db(b"rows", create=False)
            with env.begin() as txn:
                rows: dict[int, bytes | None] = {
                    int.from_bytes(name, "big"): bytes(value) for name, value in txn.cursor(table)
                }
                return rows, []
    except (lmdb.Error, OSError) as error:
        return {}, [f"the journal {directory} cannot be read: {error}"]
