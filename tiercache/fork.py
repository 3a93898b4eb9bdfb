"""LMDB environments that a child of a fork inherits: neither used nor closed nor collected there.

py-lmdb closes an environment when it is collected, and that may wait for the parent's threads, which do not exist in
the child. So they are made immortal.
"""

from __future__ import annotations

import ctypes
import os

_environments: dict[int, object] = {}


def opened(environment: object) -> None:
    """To be called for every environment that this process opens."""
    _environments[id(environment)] = environment


def closed(environment: object) -> None:
    """And when it is closed again."""
    _environments.pop(id(environment), None)


def forget_inherited() -> None:
    """Done by itself after ``os.fork``; for a process that was forked by C code that runs no Python hooks."""
    for environment in _environments.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(environment))
    _environments.clear()


os.register_at_fork(after_in_child=forget_inherited)
