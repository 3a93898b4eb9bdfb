"""Programs that use a mount while its engine is killed: ``python -m rig.mount_load KIND DIRECTORY SEED``, where KIND is
reader or writer.

Each prints a line for every round, works until its standard input ends, and then prints what it expects to find: for a
writer, the digest of every file that it left. Any error, and any wrong byte, ends it with a traceback.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import select
import subprocess
import sys
from pathlib import Path

SIZES = (0, 1, 4096, 70_001, 300_000, 1_000_003, 5_000_000)
FILES = 24


@functools.cache
def content(number: int) -> bytes:
    """The bytes of the file of this number in the tree that readers read."""
    return random.Random(number).randbytes(SIZES[number % len(SIZES)])


def make_tree(directory: Path) -> None:
    directory.mkdir()
    for number in range(FILES):
        (directory / f"f{number}").write_bytes(content(number))


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Reader:
    """Reads whole files and pieces, through files that it opens anew and through some that stay open."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._random = random.Random(seed)
        self._kept = {number: os.open(directory / f"f{number}", os.O_RDONLY) for number in range(0, FILES, 5)}

    def round(self) -> None:
        number = self._random.randrange(FILES)
        expected = content(number)
        assert (self._directory / f"f{number}").read_bytes() == expected
        number, kept = self._random.choice(list(self._kept.items()))
        expected = content(number)
        offset = self._random.randrange(len(expected) + 1)
        assert os.pread(kept, 100_000, offset) == expected[offset : offset + 100_000]
        names = sorted(os.listdir(self._directory))
        assert names == sorted(f"f{number}" for number in range(FILES))

    def end(self) -> dict[str, str]:
        for kept in self._kept.values():
            os.close(kept)
        return {}


class Writer:
    """Makes, changes, renames and removes files and directories, with buffers and without, and remembers what must be
    there."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._random = random.Random(seed)
        self._files: dict[str, bytes] = {}
        self._made = 0
        self._log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._logged = b""
        self._held = os.open(directory / "held", os.O_RDWR | os.O_CREAT)
        self._held_bytes = bytearray()

    def round(self) -> None:
        for step in (self._make, self._append, self._rename, self._remove, self._write_log, self._patch, self._check):
            step()
        self._move_directory()

    def _data(self) -> bytes:
        return self._random.randbytes(self._random.choice((1, 100, 5_000, 150_000)))

    def _any(self) -> str | None:
        return self._random.choice(sorted(self._files)) if self._files else None

    def _make(self) -> None:
        name, data = f"n{self._made}", self._data()
        self._made += 1
        with open(self._directory / name, "xb") as file:
            file.write(data)
            file.write(data)
            if self._random.random() < 0.3:
                file.flush()
                os.fsync(file.fileno())
        self._files[name] = data + data

    def _append(self) -> None:
        name = self._any()
        if name is not None:
            data = self._data()
            with open(self._directory / name, "ab") as file:
                file.write(data)
            self._files[name] += data

    def _rename(self) -> None:
        name = self._any()
        if name is not None:
            target = self._random.choice([f"r{self._made}", *sorted(self._files)])
            os.rename(self._directory / name, self._directory / target)
            self._files[target] = self._files.pop(name)

    def _remove(self) -> None:
        name = self._any()
        if name is not None and len(self._files) > 4:
            expected = self._files.pop(name)
            with open(self._directory / name, "r+b", buffering=0) as file:
                os.unlink(self._directory / name)
                assert file.read() == expected
                file.write(b"nobody will see this")

    def _move_directory(self) -> None:
        place = self._directory / "place"
        place.mkdir()
        (place / "inside").write_bytes(b"x")
        place.rename(self._directory / "moved")
        (self._directory / "moved" / "inside").unlink()
        (self._directory / "moved").rmdir()

    def _write_log(self) -> None:
        for _ in range(3):
            line = b"%d " % self._random.randrange(10**9)
            assert os.write(self._log, line) == len(line)
            self._logged += line
        assert os.fstat(self._log).st_size == len(self._logged)

    def _patch(self) -> None:
        """Writes in the middle of a file that stays open."""
        offset, data = self._random.randrange(len(self._held_bytes) + 1), self._data()[:20_000]
        assert os.pwrite(self._held, data, offset) == len(data)
        self._held_bytes[offset : offset + len(data)] = data
        assert os.pread(self._held, len(self._held_bytes) + 1, 0) == self._held_bytes

    def _check(self) -> None:
        name = self._any()
        if name is not None:
            assert (self._directory / name).read_bytes() == self._files[name]
        names = {*self._files, "log", "held"}
        found = set(os.listdir(self._directory))
        assert found == names, f"only expected: {names - found}, only found: {found - names}"

    def end(self) -> dict[str, str]:
        os.close(self._log)
        os.close(self._held)
        files = {**self._files, "log": self._logged, "held": bytes(self._held_bytes)}
        return {name: digest(data) for name, data in files.items()}


class Load:
    """One such program under a test's control."""

    def __init__(self, kind: str, directory: Path, seed: int) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        self.name = f"{kind} {seed}"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rig.mount_load", kind, str(directory), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def wait_for_rounds(self, rounds: int, deadline_s: float) -> None:
        """Return when it has ended so many more rounds than were ended at the call."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        os.set_blocking(descriptor, False)
        with contextlib.suppress(BlockingIOError):
            while os.read(descriptor, 65536):
                pass
        seen = 0
        while seen < rounds:
            assert select.select([descriptor], [], [], deadline_s)[0], f"{self.name} does not go on"
            data = os.read(descriptor, 65536)
            assert data, f"{self.name} failed:\n{self.failure()}"
            seen += data.count(b"\n")

    def failure(self) -> str:
        self._process.kill()
        return self._process.communicate()[1]

    def end(self, deadline_s: float) -> dict[str, str]:
        """Let it finish; what it expects to find."""
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), True)
        out, err = self._process.communicate("", timeout=deadline_s)
        assert self._process.returncode == 0, f"{self.name} failed:\n{err}"
        expected: dict[str, str] = json.loads(out.strip().splitlines()[-1])
        return expected

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    kind, directory, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    work = Reader(directory, seed) if kind == "reader" else Writer(directory, seed)
    os.set_blocking(sys.stdin.fileno(), False)
    while not select.select([sys.stdin], [], [], 0)[0]:
        work.round()
        print(".", flush=True)
    print(json.dumps(work.end()))


if __name__ == "__main__":
    main()
