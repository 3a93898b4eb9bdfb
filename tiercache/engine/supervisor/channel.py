"""Messages with descriptors between engine and supervisor: one JSON object a packet, on a socket pair.

Engine to supervisor: ``hold`` (a mount and its descriptors), ``release`` (forget it), ``ready``.
Supervisor to engine: ``hello`` (first of all), ``mount`` for each that it holds, ``begin`` (that was all),
``released``.
The supervisor may be of an older release than the engine: a new engine must understand what an older one kept, and
either side ignores kinds that it does not know.
"""

from __future__ import annotations

import array
import json
import os
import socket
from contextlib import suppress
from typing import Any, Final

Message = dict[str, Any]

MESSAGE_MAX_BYTES: Final = 64 * 1024
"""Longest message; the description of a mount takes a few hundred bytes."""

DESCRIPTORS_MAX: Final = 4
"""Descriptors in one message."""

EXIT_REPLACE: Final = 75
"""Exit status of an engine that wants to be replaced by a new one at once (EX_TEMPFAIL)."""

EXIT_STAGED: Final = 3
"""Exit status of an engine that ended in order and left staged bytes in the journal, as of the commands."""


def pair() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end and the engine's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message. ValueError when it is too long or not JSON, OSError when the other side is gone."""
    data = json.dumps(message).encode()
    if len(data) > MESSAGE_MAX_BYTES or len(descriptors) > DESCRIPTORS_MAX:
        raise ValueError(f"a message of {len(data)} bytes with {len(descriptors)} descriptors is over the limits")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    end.sendmsg([data], rights, socket.MSG_NOSIGNAL)


def receive(end: socket.socket, flags: int = 0) -> tuple[Message, tuple[int, ...]] | None:
    """The next message and its descriptors, which the caller owns; None when the other side is gone."""
    room = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
    try:
        data, ancillary, _, _ = end.recvmsg(MESSAGE_MAX_BYTES, room, flags | socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None
    if not data:
        return None
    found = array.array("i")
    for level, kind, rights in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(rights[: len(rights) - len(rights) % found.itemsize])
    return json.loads(data), tuple(found)


def close_all(descriptors: tuple[int, ...]) -> None:
    """Close what was received."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
