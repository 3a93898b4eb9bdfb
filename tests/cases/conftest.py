"""Fixtures of cases: mounts over an S3 server."""

from rig.mount_fixtures import bucket_client, driver, mountpoint, s3

__all__ = ["bucket_client", "driver", "mountpoint", "s3"]
