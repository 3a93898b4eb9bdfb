"""An engine in the foreground, for service managers, containers and whoever wants to watch it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tiercache.engine.process import supervisor_command, supervisor_environment, supervisor_settings

if TYPE_CHECKING:
    from tiercache.config import Config

NOBODY_WAITS = -1


def run(config: Config) -> None:
    """Become the supervisor of an engine, until a signal or ``tiercache stop``. Their log goes to stderr."""
    settings = os.memfd_create("tiercache-settings", os.MFD_CLOEXEC)
    os.write(settings, supervisor_settings(config))
    os.lseek(settings, 0, os.SEEK_SET)
    os.dup2(settings, 0)
    sys.stdout.flush()
    # In our place: a service manager goes on knowing the process that it started.
    command = [*supervisor_command(NOBODY_WAITS), "--foreground"]
    os.execve(sys.executable, command, supervisor_environment())
