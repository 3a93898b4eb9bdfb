"""Fixtures of the tests of plans: engines in the test's own loop, and engine processes with real mounts."""

from rig.engine_ground import ground, posix_ground, s3_ground
from rig.mount_fixtures import bucket_client, driver, mountpoint, own_engine, posix, s3, source

__all__ = [
    "bucket_client",
    "driver",
    "ground",
    "mountpoint",
    "own_engine",
    "posix",
    "posix_ground",
    "s3",
    "s3_ground",
    "source",
]
