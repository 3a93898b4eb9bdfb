"""Every failure is one line on stderr and an exit status; ``TIERCACHE_DEBUG=1`` shows where it came from."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer

from tiercache.errors import TierCacheError

FAILED = 1
USAGE = 2
STAGED = 3
"""Done as far as possible, but bytes that the origin lacks stay in the journal."""
INTERRUPTED = 130


# Typer brings its own copy of click or imports the library, as its release has it; its public name leads to either.
_USAGE_ERRORS: Any = tuple(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class WrongUsage(TierCacheError):
    """The command line itself is wrong, whatever the configuration and the engine say; ends with status USAGE."""


class Unfinished(TierCacheError):
    """The command did its part, and staged bytes remain; ends with status STAGED."""


def run(app: typer.Typer, arguments: list[str]) -> int:
    """Run a command line and return the exit status. Nothing but SystemExit of an embedded tool leaves here."""
    try:
        result = typer.main.get_command(app).main(arguments or ["--help"], prog_name="tiercache", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        return _report(error)
    return result if isinstance(result, int) else 0


def _report(error: BaseException) -> int:
    if os.environ.get("TIERCACHE_DEBUG", "0") not in ("", "0") and not isinstance(error, typer.Exit | SystemExit):
        traceback.print_exception(error)
    match error:
        case typer.Exit():
            return error.exit_code
        case SystemExit():
            raise error
        case _ if isinstance(error, _USAGE_ERRORS):
            _say(error.format_message())
            return USAGE
        case KeyboardInterrupt() | typer.Abort():
            _say("interrupted")
            return INTERRUPTED
        case WrongUsage():
            _say(str(error))
            return USAGE
        case Unfinished():
            _say(str(error))
            return STAGED
        case TierCacheError():
            _say(str(error))
        case BrokenPipeError():
            # Whoever read our output has gone (head, less); the interpreter would complain once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        case OSError() if error.strerror:
            _say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
        case _:
            _say(f"internal error: {type(error).__name__}: {error} (TIERCACHE_DEBUG=1 shows where)")
    return FAILED


def _say(message: str) -> None:
    line = " ".join(message.split()).encode("utf-8", "backslashreplace").decode()
    print(f"tiercache: {line}", file=sys.stderr)
