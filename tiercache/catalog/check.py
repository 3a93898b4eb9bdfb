"""Walk through a catalog as a program of its own: exit status 0 if every record can be read, else a line that says why.

The walk stops after a while with success: a start must stay quick, and damage met later is told by LMDB as an error.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import lmdb

from tiercache.catalog import codec, environment
from tiercache.catalog.environment import Transaction

_WALK_LIMIT_S = 2.0
_CLOCK_EVERY = 4096


def walk(directory: Path) -> None:
    """Read every record and decode those whose form is known. Any exception means damage."""
    shared = environment.acquire(directory)
    deadline_s = time.monotonic() + _WALK_LIMIT_S
    try:
        with shared.lmdb.begin() as transaction:
            for name, table in zip(environment.Tables._fields, shared.tables, strict=True):
                _walk_table(transaction, name, table, deadline_s)
    finally:
        environment.release(shared)


def _walk_table(transaction: Transaction, name: str, table: Any, deadline_s: float) -> None:
    entries = transaction.stat(table)["entries"]
    seen = 0
    for _, value in transaction.cursor(table):
        seen += 1
        if name == "names":
            codec.decode_entry(bytes(value))
        elif name == "versions":
            codec.decode_version(bytes(value))
        if seen % _CLOCK_EVERY == 0 and time.monotonic() > deadline_s:
            return
    if seen != entries:
        raise lmdb.CorruptedError(f"table {name} has {seen} records instead of {entries}")


def main() -> int:
    """Check the directory named by the only argument."""
    try:
        walk(Path(sys.argv[1]))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
