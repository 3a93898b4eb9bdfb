"""The file beside a name that an upload fills before it takes the name, where a rename completes an upload."""

from __future__ import annotations

import os

import xxhash

PREFIX = ".tiercache-"
"""Listings leave out what begins so."""


def temporary_name(name: bytes, upload_id: str) -> str:
    """One for each name and staged file: the id of a later seal leads to the same, so that its upload, or its removal,
    finds what was left by an upload that a kill cut short. Without an id it is one that nobody else has."""
    lineage = upload_id.partition(".")[0] or os.urandom(8).hex()
    return f"{PREFIX}{lineage}-{xxhash.xxh3_64_hexdigest(name)}.tmp"
