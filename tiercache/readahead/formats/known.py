"""The formats that are known, by the names of their files."""

from __future__ import annotations

from typing import Final

from tiercache.model import Key
from tiercache.readahead.formats import parquet, safetensors, tar, zip_records
from tiercache.readahead.formats.format import Format

FORMATS: Final = (safetensors.FORMAT, zip_records.FORMAT, parquet.FORMAT, tar.FORMAT)


def format_of(key: Key) -> Format | None:
    """By the suffix alone; the parser looks whether it is true."""
    name = key[key.rfind(b"/") + 1 :].lower()
    return next((known for known in FORMATS if name.endswith(known.suffixes)), None)
