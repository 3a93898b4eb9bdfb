"""Fixtures of the mount's tests."""

from rig.mount_fixtures import (
    bucket_client,
    driver,
    engine,
    mounted,
    mountpoint,
    on_posix,
    on_s3,
    own_engine,
    posix,
    root,
    s3,
    source,
)

__all__ = [
    "bucket_client",
    "driver",
    "engine",
    "mounted",
    "mountpoint",
    "on_posix",
    "on_s3",
    "own_engine",
    "posix",
    "root",
    "s3",
    "source",
]
