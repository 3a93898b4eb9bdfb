"""fio writes blocks that carry their own checksums, and reads them back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rig.mounts import Mounted

TIMEOUT_S = 60

JOBS = {
    "buffered": ["--ioengine=psync"],
    "mapped": ["--ioengine=mmap"],
    "direct": ["--ioengine=psync", "--direct=1"],
}


def fio(directory: Path, *options: str) -> None:
    result = subprocess.run(
        ["fio", "--name=job", "--size=4m", "--bs=4k", "--verify=crc32c", "--verify_fatal=1", "--randseed=7", *options],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "err= 0" in result.stdout, result.stdout


@pytest.mark.parametrize("job", JOBS)
def test_every_block_reads_back_as_it_was_written(mounted: Mounted, root: Path, job: str) -> None:
    """Random overwrites are verified at once, and again once the file was fetched anew from the origin."""
    fio(root, "--rw=randwrite", "--norandommap", *JOBS[job])
    fio(root, "--rw=randwrite", *JOBS[job])
    mounted.drain()
    mounted.cold()
    fio(root, "--rw=randwrite", "--verify_only", *JOBS[job])
    fio(root, "--rw=randwrite", "--verify_only", *JOBS["buffered"])
