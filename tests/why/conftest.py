"""Fixtures of the tests of why: engines in the test's own loop."""

from rig.engine_ground import s3_ground

__all__ = ["s3_ground"]
