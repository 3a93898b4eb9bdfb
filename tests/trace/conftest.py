"""Fixtures of the tests of traces: engines in the test's own loop, and engine processes with real mounts."""

from rig.engine_ground import s3_ground
from rig.mount_fixtures import bucket_client, driver, mountpoint, own_engine, s3

__all__ = ["bucket_client", "driver", "mountpoint", "own_engine", "s3", "s3_ground"]
