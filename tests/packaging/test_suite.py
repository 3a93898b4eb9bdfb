"""The suite is the same in the foreground and in the background of a script, where scripts/test.sh runs this half."""

from __future__ import annotations

import subprocess
import sys


def test_the_programs_that_tests_start_can_be_interrupted() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"
