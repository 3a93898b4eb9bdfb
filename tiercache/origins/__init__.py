"""Where the data lives: one contract (``base``), an implementation for each kind of store, and wrappers around any."""

from tiercache.model import Capability
from tiercache.origins.base import ALWAYS, Condition, Origin, Progress, Source, Upload
from tiercache.origins.limits import Limits
from tiercache.origins.registry import open_origin, origin_identity
from tiercache.origins.retry import RetryingOrigin, RetryPolicy
from tiercache.origins.simulated import SimulatedOrigin

__all__ = [
    "ALWAYS",
    "Capability",
    "Condition",
    "Limits",
    "Origin",
    "Progress",
    "RetryPolicy",
    "RetryingOrigin",
    "SimulatedOrigin",
    "Source",
    "Upload",
    "open_origin",
    "origin_identity",
]
