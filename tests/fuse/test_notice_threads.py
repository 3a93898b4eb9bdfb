"""Notices are sent by threads of their own while the session may end."""

from __future__ import annotations

import errno
import os
import threading
from typing import cast

import pytest

from rig.mounts import wait_for
from tiercache.fuse.kernel.session import KernelDriver
from tiercache.fuse.vfs import Vfs
from tiercache.memory import SMALLEST_BYTES, Memory
from tiercache.metrics import Metrics


def test_a_session_that_ends_is_not_closed_under_a_notice_that_waits() -> None:
    """Its number would be that of the next file that is opened, and the notice would be written into that."""
    reading, writing = os.pipe()
    driver = KernelDriver(cast(Vfs, None), "", memory=Memory(SMALLEST_BYTES), metrics=Metrics(), stack_depth=1)
    driver._descriptor = writing  # as if the kernel took notices slowly
    notice = memoryview(bytes(1 << 20))
    sender = threading.Thread(target=driver.store, args=(2, notice))
    sender.start()
    wait_for(lambda: driver._notifying == 1)
    driver.close()
    other = os.open("/dev/null", os.O_RDONLY)
    assert other != writing
    with pytest.raises(OSError, match="the session is over") as caught:
        driver.invalidate_attributes(2)
    assert caught.value.errno == errno.ENODEV
    taken = 0
    while data := os.read(reading, 1 << 20):
        taken += len(data)
    assert taken > len(notice), "all of it went to the session"
    sender.join()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writing)
    driver.close()
    os.close(other)
    os.close(reading)
