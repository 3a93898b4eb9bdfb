"""Fixtures of the engine's tests."""

from rig.engine_ground import ground, posix_ground, s3_ground

__all__ = ["ground", "posix_ground", "s3_ground"]
