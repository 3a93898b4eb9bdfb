"""Which directories are checkpoints, which of them are whole, which is the latest and which stay near. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from tiercache.model import Durability

DCP_METADATA: Final = b".metadata"
INDEX_SUFFIX: Final = b".index.json"

_SHARD = re.compile(rb"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})(?P<suffix>\.safetensors|\.bin)")
"""How Transformers and its kin name the parts of a sharded model; ``STEM.SUFFIX.index.json`` tells of them."""
_TRAINER = re.compile(rb"checkpoint-\d+")
"""What the Trainer of Transformers calls checkpoints: all have its arguments, and its state, which comes last."""
_TRAINER_ARGUMENTS: Final = b"training_args.bin"
_TRAINER_STATE: Final = b"trainer_state.json"
_NUMBER = re.compile(rb"\d+")


class SavedFile(NamedTuple):
    """A file of a checkpoint."""

    name: bytes
    """Below the checkpoint's directory; the checkpoint's own name where it is one file."""
    size_bytes: int
    mtime_ns: int
    level: Durability
    state: str = "clean"
    """As in ``status``: clean, staged, sealed, uploading, conflict, lost."""
    writing: bool = False
    """Whether somebody has it open for writing."""
    announces: bool = False
    """Whether its name tells that the others are there."""
    changed_ns: int = 0
    """When it was written, or got its name, as far as that is known."""


class Checkpoint(NamedTuple):
    """What is known of one checkpoint."""

    name: bytes
    files: int
    size_bytes: int
    saved_ns: int
    """When the newest of its files was written."""
    level: Durability
    """What all of its files have reached."""
    lacks: str
    """Why it is not complete, in words; empty when it is."""

    @property
    def complete(self) -> bool:
        return not self.lacks


def matches(name: bytes, patterns: Iterable[str]) -> bool:
    """Whether a file or directory of this name is a checkpoint by its name alone."""
    text = name.decode("utf-8", "surrogateescape")
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def has_manifest(names: Iterable[bytes]) -> bool:
    """Whether a directory with these files in it is a checkpoint, whatever it is called."""
    return any(name == DCP_METADATA or name.endswith(INDEX_SUFFIX) for name in names)


class Settling(NamedTuple):
    """How long nothing may have changed in a checkpoint of which no file announces the others."""

    needed_s: float
    now_ns: int


def judge(
    name: bytes, files: Sequence[SavedFile], *, level: Durability, settling: Settling | None = None
) -> Checkpoint:
    """The checkpoint ``name`` of these files. It is complete when nothing is missing of what its format wants, nobody
    writes to it, every file has reached ``level``, and it has settled. ``settling`` is None where there is nothing to
    settle, as in a checkpoint of one file."""
    reached = min((file.level for file in files), default=Durability.MEMORY)
    return Checkpoint(
        name,
        len(files),
        sum(file.size_bytes for file in files),
        max((file.mtime_ns for file in files), default=0),
        reached,
        _lacks(name, files, reached, level) or _unsettled(name, files, settling),
    )


def _unsettled(checkpoint: bytes, files: Sequence[SavedFile], settling: Settling | None) -> str:
    # One further down tells of its own directory.
    announcing = {file.name for file in files if file.announces and b"/" not in file.name}
    if _TRAINER.fullmatch(checkpoint):
        announcing = {name for name in announcing if not name.endswith(INDEX_SUFFIX)}  # others follow it there
    if settling is None or announcing:
        return ""
    # Another machine's clock may be ahead a little.
    if any(abs(settling.now_ns - file.changed_ns) < settling.needed_s * 1e9 for file in files):
        return f"changed less than {settling.needed_s:g} s ago, and no file in it tells that all are there"
    return ""


def _lacks(checkpoint: bytes, files: Sequence[SavedFile], reached: Durability, level: Durability) -> str:
    if not files:
        return "it is empty"
    for state, word in (("lost", "is lost"), ("conflict", "is in conflict with another writer's")):
        if name := next((file.name for file in files if file.state == state), b""):
            return f"{_shown(name)} {word}"
    if name := next((file.name for file in files if file.writing), b""):
        return f"{_shown(name)} is being written"
    if missing := _missing(checkpoint, [file.name for file in files]):
        return f"{_shown(missing)} is missing"
    if reached < level:
        behind = sum(file.level < level for file in files)
        return f"{behind} of {len(files)} not at level {level.label} yet"
    return ""


def _missing(checkpoint: bytes, names: Sequence[bytes]) -> bytes:
    """The first file that the names of the others tell of."""
    have = set(names)
    if _TRAINER.fullmatch(checkpoint) and _TRAINER_ARGUMENTS in have and _TRAINER_STATE not in have:
        return _TRAINER_STATE
    for name in names:
        directory = name[: name.rfind(b"/") + 1]
        if name.endswith(b".distcp") and directory + DCP_METADATA not in have:
            return directory + DCP_METADATA
    shards: defaultdict[tuple[bytes, bytes, bytes], set[int]] = defaultdict(set)
    for name in names:
        if found := _SHARD.fullmatch(name):
            shards[found["stem"], found["total"], found["suffix"]].add(int(found["number"]))
    for (stem, total, suffix), numbers in shards.items():
        for number in range(1, int(total) + 1):
            if number not in numbers:
                return b"%s-%05d-of-%s%s" % (stem, number, total, suffix)
        if stem + suffix + INDEX_SUFFIX not in have:
            return stem + suffix + INDEX_SUFFIX
    return b""


def in_order(names: Iterable[bytes], saved_ns: Mapping[bytes, int]) -> list[bytes]:
    """Checkpoints, the latest first: by the last number in the name (``checkpoint-1000`` is later than
    ``checkpoint-900``), those without one and equal ones by the time."""

    def age(name: bytes) -> tuple[int, int, bytes]:
        numbers = _NUMBER.findall(name)
        return int(numbers[-1]) if numbers else -1, saved_ns.get(name, 0), name

    return sorted(names, key=age, reverse=True)


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
