"""A log of what was acknowledged, written by another process than the engine's, and what must be found by it.

``python -m rig.ack_log CACHE_DIR TREE PROFILE SEED LOG`` works through fsspec on a file tree until its standard input
ends. Before each change it notes what the names it touches may come to, and after it, if the call returned, that this
is so. What fails because the engine is being killed is not acknowledged, and the work goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tiercache.filesystem import TierCacheFileSystem

PATIENCE_S = 60.0
"""Only how long a broken test takes to fail."""

_SIZES = (0, 1, 5_000, 300_000, 2_000_000)
_NAMES = 12


def digest(data: bytes | None) -> str:
    """Of a file's bytes; "" for none."""
    return "" if data is None else hashlib.blake2b(data, digest_size=16).hexdigest()


class AckLog:
    """One line for each thing that is about to happen to a name, and for each that has happened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def begins(self, **states: bytes | None) -> None:
        self._write("begins", states)

    def acknowledged(self, **states: bytes | None) -> None:
        self._write("acknowledged", states)

    def _write(self, what: str, states: dict[str, bytes | None]) -> None:
        told = {name: digest(data) for name, data in states.items()}
        os.write(self._fd, json.dumps([what, told]).encode() + b"\n")

    def close(self) -> None:
        os.close(self._fd)


def allowed(lines: list[bytes]) -> dict[str, set[str]]:
    """The digests that each name may have: of what was acknowledged last, and of what was begun since."""
    names: dict[str, set[str]] = {}
    for line in lines:
        what, states = json.loads(line)
        for name, state in states.items():
            if what == "begins":
                names.setdefault(name, {""}).add(state)
            else:
                names[name] = {state}
    return names


class Worker:
    """Makes, replaces, appends to, renames and removes files, and knows what the names hold where that is certain."""

    def __init__(self, fs: TierCacheFileSystem, tree: Path, seed: int, log: AckLog) -> None:
        self._fs = fs
        self._tree = tree
        self._random = random.Random(seed)
        self._log = log
        self._known: dict[str, bytes | None] = {f"f{number}": None for number in range(_NAMES)}

    def step(self) -> bool:
        """Whether it was acknowledged."""
        work = self._random.choice((self._replace, self._replace, self._append, self._rename, self._remove))
        try:
            return work()
        except OSError:  # of which ours are
            return False

    def _path(self, name: str) -> str:
        return str(self._tree / name)

    def _pick(self, *, there: bool) -> str | None:
        names = [name for name, data in self._known.items() if not there or data is not None]
        return self._random.choice(names) if names else None

    def _begins(self, **states: bytes | None) -> None:
        self._log.begins(**states)
        self._known.update(dict.fromkeys(states))  # until it is acknowledged, nobody knows

    def _acknowledged(self, **states: bytes | None) -> bool:
        self._log.acknowledged(**states)
        self._known.update(states)
        return True

    def _write(self, name: str, mode: str, data: bytes, whole: bytes) -> bool:
        self._begins(**{name: whole})
        with self._fs.open(self._path(name), mode) as file:
            file.write(data)
        return self._acknowledged(**{name: whole})

    def _replace(self) -> bool:
        name = self._pick(there=False)
        assert name is not None
        data = self._random.randbytes(self._random.choice(_SIZES))
        return self._write(name, "wb", data, data)

    def _append(self) -> bool:
        name = self._pick(there=True)
        if name is None:
            return self._replace()
        data, before = self._random.randbytes(1000), self._known[name]
        assert before is not None
        return self._write(name, "ab", data, before + data)

    def _rename(self) -> bool:
        source, target = self._pick(there=True), self._pick(there=False)
        if source is None or source == target:
            return self._replace()
        assert target is not None
        data = self._known[source]
        self._begins(**{source: None, target: data})
        self._fs.mv(self._path(source), self._path(target))
        return self._acknowledged(**{source: None, target: data})

    def _remove(self) -> bool:
        name = self._pick(there=True)
        if name is None:
            return self._replace()
        self._begins(**{name: None})
        self._fs.rm_file(self._path(name))
        return self._acknowledged(**{name: None})


class Work:
    """Such a process under a test's control."""

    def __init__(self, cache_dir: Path, tree: Path, profile: str, seed: int) -> None:
        self.log = tree.parent / f"acknowledged-{seed}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rig.ack_log", cache_dir, tree, profile, str(seed), self.log],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )

    def wait(self, acknowledged: int) -> None:
        """Return when so many more changes were acknowledged."""
        assert self._process.stdout is not None
        while acknowledged > 0:
            assert select.select([self._process.stdout], [], [], PATIENCE_S)[0], "nothing is acknowledged any more"
            lines = os.read(self._process.stdout.fileno(), acknowledged)
            assert lines, "it ended"
            acknowledged -= len(lines)

    def freeze(self) -> None:
        """It goes no further, in the middle of whatever it is at."""
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Let it finish what it is at."""
        self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0

    def expected(self) -> dict[str, set[str]]:
        """What each name may hold by what the log says now."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        return allowed([line for line in lines if line.endswith(b"\n")])

    def kill(self) -> None:
        self._process.kill()
        with suppress(ValueError):
            self._process.communicate()


def found(tree: Path, name: str) -> str:
    """The digest of what the origin has under a name."""
    path = tree / name
    return digest(path.read_bytes() if path.exists() else None)


def main() -> None:
    cache_dir, tree, profile, seed, path = sys.argv[1:]
    fs = TierCacheFileSystem(target_protocol="file", cache_dir=cache_dir, profile=profile)
    log = AckLog(Path(path))
    worker = Worker(fs, Path(tree), int(seed), log)
    while not select.select([sys.stdin], [], [], 0)[0]:
        if worker.step():
            os.write(sys.stdout.fileno(), b".")
    log.close()


if __name__ == "__main__":
    main()
