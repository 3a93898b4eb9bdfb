"""The command as a user runs it: another process, without a terminal, with a home of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tiercache.cli.app import app
from tiercache.cli.failure import run

PROGRESS = ("draining: ", "warming up: ", "checking: ")


class Command:
    """Runs ``tiercache``; remembers the cache directory, so that its engine can be ended."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.cache_dir = home / "cache"
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("TIERCACHE_", "AWS_", "XDG_"))
        }
        self.environment |= {"HOME": str(home), "TIERCACHE_RAM__DIRECTORY": str(home / "ram")}

    def arguments(self, *arguments: str | Path) -> list[str]:
        return [sys.executable, "-P", "-m", "tiercache.cli", *map(str, arguments)]

    def __call__(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.arguments(*arguments),
            capture_output=True,
            text=True,
            env=self.environment | environment,
            stdin=subprocess.DEVNULL,
            cwd=self.home,
            timeout=100,
        )

    def inside(self) -> InProcess:
        """The same without a process of its own: for commands that reach no engine, and many times faster."""
        return InProcess(self.home)

    def good(self, *arguments: str | Path, **environment: str) -> str:
        """The output of a command that must succeed."""
        result = self(*arguments, **environment)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def failure(self, *arguments: str | Path, status: int = 1, **environment: str) -> str:
        """The one line in which a command says why it failed, without its ``tiercache: ``."""
        result = self(*arguments, **environment)
        assert result.returncode == status, result.stdout + result.stderr
        # On a slow machine long work tells its progress in between.
        lines = [line for line in result.stderr.splitlines() if not line.startswith(PROGRESS)]
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("tiercache: ")
        return lines[0].removeprefix("tiercache: ")

    def here(self, *arguments: str | Path) -> list[str | Path]:
        """The arguments with our cache directory."""
        return [*arguments, "--cache-dir", self.cache_dir]


class InProcess(Command):
    """Runs the command line as a function call."""

    def __call__(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            for name in set(os.environ) - set(self.environment):
                patch.delenv(name)
            for name, value in (self.environment | environment).items():
                patch.setenv(name, value)
            patch.chdir(self.home)
            with redirect_stdout(out), redirect_stderr(err):
                status = run(app, list(map(str, arguments)))
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())
