"""What clients may ask of an engine, one function per operation."""

from tiercache.engine.requests import barriers, control, files, names, pins, plans
from tiercache.engine.requests.registry import OPERATIONS, Call, Nature, Operation

__all__ = ["OPERATIONS", "Call", "Nature", "Operation", "barriers", "control", "files", "names", "pins", "plans"]
