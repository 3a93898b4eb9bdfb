"""The names in a column of a manifest: JSON lines, CSV, TSV or Parquet, read row by row."""

from __future__ import annotations

import csv
import enum
import json
from collections.abc import Iterator
from typing import IO, Any, Final

from tiercache.errors import ConfigError

ENDINGS: Final = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")
ROWS_AT_ONCE: Final = 65_536


class Nameless(enum.Enum):
    """Why a row names nothing."""

    EMPTY = "empty cell"
    UNREADABLE = "unreadable row"


Names = Iterator[str | Nameless]


def names_in(manifest: str, file: IO[bytes], column: str) -> Names:
    """Of each row what the column holds; several for a list. ConfigError for a manifest that cannot be read, and one
    that has no such column."""
    ending = next((ending for ending in ENDINGS if manifest.endswith(ending)), "")
    if ending == ".parquet":
        return _parquet(manifest, file, column)
    if ending in (".jsonl", ".ndjson"):
        return _json_lines(manifest, file, column)
    if ending:
        return _table(manifest, file, column, "\t" if ending == ".tsv" else ",")
    raise ConfigError(f"{manifest}: is no manifest; allowed: {', '.join(ENDINGS)}")


def _json_lines(manifest: str, file: IO[bytes], column: str) -> Names:
    found = False
    for line in file:
        if line.isspace():
            continue
        try:
            cell = _inside(json.loads(line), column)
        except ValueError:
            yield Nameless.UNREADABLE
            continue
        found = found or cell is not None
        yield from _names(cell)
    if not found:
        raise ConfigError(f"{manifest}: no line has {column!r}")


def _inside(row: Any, column: str) -> Any:
    """A field by its name, or by dotted names what lies deeper."""
    if not isinstance(row, dict):
        return None
    if column in row:
        return row[column]
    first, dot, rest = column.partition(".")
    return _inside(row.get(first), rest) if dot else None


def _table(manifest: str, file: IO[bytes], column: str, delimiter: str) -> Names:
    lines = (line.decode("utf-8-sig" if number == 0 else "utf-8") for number, line in enumerate(file))
    try:
        rows = csv.DictReader(lines, delimiter=delimiter)
        if column not in (rows.fieldnames or ()):
            raise ConfigError(f"{manifest}: has no column {column!r}; there are: {', '.join(rows.fieldnames or ())}")
        for row in rows:
            yield from _names(row[column])
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{manifest}: {error}") from None


def _parquet(manifest: str, file: IO[bytes], column: str) -> Names:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ConfigError(f"{manifest}: Parquet is read by pyarrow, which is not installed here") from None
    try:
        table = parquet.ParquetFile(file)
        there = table.schema_arrow.names
        first, *deeper = [column] if column in there else column.split(".")
        for batch in table.iter_batches(ROWS_AT_ONCE, columns=[".".join([first, *deeper])]):
            if not batch.num_columns:
                raise ConfigError(f"{manifest}: has no column {column!r}; there are: {', '.join(there)}")
            cells = batch.column(0)
            for name in deeper:
                cells = cells.field(name)
            for cell in cells.to_pylist():
                yield from _names(cell)
    except (arrow.ArrowException, KeyError) as error:
        raise ConfigError(f"{manifest}: {error}") from None


def _names(cell: object) -> Names:
    if isinstance(cell, list):
        for item in cell:
            yield from _names(item)
    else:
        yield cell if isinstance(cell, str) and cell else Nameless.UNREADABLE if cell else Nameless.EMPTY
