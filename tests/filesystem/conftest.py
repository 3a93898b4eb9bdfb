"""The fixtures of these tests."""

from rig.ground import bucket, cache_dir, ground, local, s3

__all__ = ["bucket", "cache_dir", "ground", "local", "s3"]
