"""The command ``tiercache``."""

from __future__ import annotations

from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and exit with its status."""
    import sys

    from tiercache.cli.app import app
    from tiercache.cli.failure import run

    sys.exit(run(app, sys.argv[1:]))
