"""Mount and stay attached, or leave the mount to the engine."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tiercache.cli.drain import umount
from tiercache.cli.origin import OriginChoice
from tiercache.errors import EngineUnreachable, MountError

if TYPE_CHECKING:
    from tiercache.client import Client

MOUNTINFO = "/proc/self/mountinfo"
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def mount(
    client: Client,
    origin: OriginChoice,
    mountpoint: str,
    *,
    read_only: bool,
    driver: str,
    ack: str | None = None,
    sync_on_close: bool | None = None,
) -> dict[str, Any]:
    """Ask the engine to mount; it answers when the mount does."""
    settings = {
        "client": origin.client,
        "options": origin.options,
        "profile": origin.profile,
        "promise": {"ack": ack, "sync_on_close": sync_on_close},
        "read_only": read_only,
        "mount_options": {"driver": driver} if driver else {},
    }
    answer: dict[str, Any] = client.request(
        "mount", url=origin.url, mountpoint=os.path.abspath(mountpoint), settings=settings
    )
    return answer


def leave(client: Client, mountpoint: str, deadline_s: float, *, signalled: bool) -> None:
    """The mount has ended, or a signal says that it should: unmount and drain then. MountError when it was lost with
    its engine, or stays because it is in use."""
    if signalled:
        try:
            umount(client, mountpoint, deadline_s, lazy=False)
        except MountError as error:
            raise MountError(f"{error}; it stays mounted: end with tiercache umount {mountpoint}") from None
        return
    try:
        client.status()
    except EngineUnreachable as error:
        raise MountError(f"{mountpoint}: the mount has ended with its engine: {error}") from None
    print(f"{mountpoint} was unmounted")


@contextmanager
def ending_signals() -> Iterator[int]:
    """A descriptor that becomes readable at a signal. A second signal ends the process as usual."""
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    old_descriptor = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    old = {number: signal.signal(number, _once) for number in ENDING_SIGNALS}
    try:
        yield read_end
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(old_descriptor)
        os.close(read_end)
        os.close(write_end)


def _once(number: int, frame: object) -> None:
    for other in ENDING_SIGNALS:
        signal.signal(other, signal.default_int_handler if other == signal.SIGINT else signal.SIG_DFL)


def stay(wakeup: int, mountpoint: str) -> bool:
    """Wait. True at a signal, False when nothing is mounted there any more; the kernel tells of both."""
    with open(MOUNTINFO, "rb") as mountinfo:
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        poll.register(mountinfo, select.POLLPRI)
        while True:
            mountinfo.seek(0)
            if not _is_mounted(mountinfo.read(), mountpoint):
                return False
            if any(descriptor == wakeup for descriptor, _ in poll.poll()):
                return True


def _is_mounted(mountinfo: bytes, mountpoint: str) -> bool:
    name = os.fsencode(mountpoint)
    for character in b"\\ \t\n":
        name = name.replace(bytes([character]), b"\\%03o" % character)
    return any(line.split(b" ", 5)[4] == name for line in mountinfo.splitlines())
