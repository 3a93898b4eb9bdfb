"""What fsync and close promise of a file: its own attribute counts first, then a rule for its path, then what its mount
or profile says."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tiercache.config import NO_REPLICAS, RuleConfig
from tiercache.errors import InvalidArgument, Unsupported
from tiercache.globs import path_pattern
from tiercache.model import Durability, Entry, Key

ACK = b"user.tiercache.ack"
"""The level that fsync waits for, of this file; of a directory, what is made in it begins with."""

LEVELS = tuple(level.label for level in Durability if level is not Durability.REPLICA)
"""The words of those that can be promised today."""

Xattrs = tuple[tuple[bytes, bytes], ...]


class Promise(NamedTuple):
    """The levels that the newest bytes have reached when the call returns."""

    fsync: Durability
    close: Durability

    def published(self, *, synced: bool) -> Durability:
        """At the close of a file that appears then, after an fsync of its descriptor or without."""
        return max(self.close, self.fsync) if synced else self.close


class Promises:
    """Of the files of one namespace."""

    def __init__(
        self, ack: str, sync_on_close: bool, rules: Sequence[RuleConfig] = (), *, uploads: bool = True
    ) -> None:
        """Without ``uploads`` files stay on this node, and nothing more than its disk can be waited for."""
        self._ack, self._sync_on_close, self._told, self._uploads = ack, sync_on_close, rules, uploads
        self._rules = [(path_pattern(rule.path), rule) for rule in rules]
        self._default = _promise(self._ack, sync_on_close=sync_on_close, uploads=uploads)

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> Promises:
        """Back from ``plain``."""
        rules = [RuleConfig.model_validate(rule) for rule in told["rules"]]
        return cls(told["ack"], told["sync_on_close"], rules, uploads=told["uploads"])

    def plain(self) -> dict[str, Any]:
        """For other processes."""
        rules = [rule.model_dump() for rule in self._told]
        return {"ack": self._ack, "sync_on_close": self._sync_on_close, "rules": rules, "uploads": self._uploads}

    def of(self, key: Key | None, xattrs: Xattrs) -> Promise:
        """``key`` None: of a file without a name, which no rule knows."""
        if not xattrs and not self._rules:
            return self._default
        ack, sync_on_close = self._by_rules(key) if key is not None else (self._ack, self._sync_on_close)
        own = next((value for name, value in xattrs if name == ACK), b"")
        return _promise(_known(own) or ack, sync_on_close=sync_on_close, uploads=self._uploads)

    def _by_rules(self, key: Key) -> tuple[str, bool]:
        """Of the rules that match, the first that tells a thing tells it."""
        matching = [rule for pattern, rule in self._rules if pattern.fullmatch(b"/" + key)]
        ack = next((rule.ack for rule in matching if rule.ack is not None), self._ack)
        sync = next((rule.sync_on_close for rule in matching if rule.sync_on_close is not None), self._sync_on_close)
        return ack, sync


@functools.cache
def _promise(ack: str, *, sync_on_close: bool, uploads: bool) -> Promise:
    level = Durability[ack.upper()]
    level = level if uploads else min(level, Durability.LOCAL)
    return Promise(level, level if sync_on_close else Durability.MEMORY)


def _known(value: bytes) -> str:
    """A level that somebody stored with a file; nothing where it is none, or one that cannot be kept here."""
    try:
        return level_of(value.decode("ascii", "replace")).label
    except (InvalidArgument, Unsupported):
        return ""


def level_of(word: str) -> Durability:
    """A level by its name. InvalidArgument if there is none; Unsupported for one that nothing here can reach."""
    try:
        level = Durability[word.upper()]
    except KeyError:
        raise InvalidArgument(f"there is no level {word!r}; there are: {', '.join(LEVELS)}") from None
    if level is Durability.REPLICA:
        raise Unsupported(NO_REPLICAS)
    return level


def inherited(directory: Entry | None) -> Xattrs:
    """The attributes that a new file or directory in ``directory`` begins with."""
    return tuple((name, value) for name, value in directory.xattrs if name == ACK) if directory is not None else ()
