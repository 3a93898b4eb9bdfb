"""Another mount namespace, as a container is one: it has a copy of every mount, and keeps it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType


class OtherNamespace:
    """A process that does nothing in a mount namespace of its own, made of ours when the block begins."""

    def __enter__(self) -> OtherNamespace:
        self._process = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is there
        return self

    def path(self, path: Path) -> Path:
        """What is at ``path`` there."""
        return Path(f"/proc/{self._process.pid}/root{os.path.abspath(path)}")

    def end(self) -> None:
        """End it, and with it its mounts, though the kernel may take a moment for that."""
        self._process.kill()
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()
