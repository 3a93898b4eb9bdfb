"""A peer: another program that mounts a bucket, tuned as its own documentation says."""

from __future__ import annotations

import re
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tiercache.bench.dataset import DataSet, Told
from tiercache.bench.place import Place
from tiercache.bench.processes import find_command
from tiercache.bench.terms import Terms
from tiercache.errors import ConfigError

VERSION_DEADLINE_S = 30.0
LAST_WORDS = 300
"""Characters of a program's output that an error quotes."""


class Launch(NamedTuple):
    """How a mount's process is started: in the foreground, so that it is our child."""

    command: list[str]
    environment: dict[str, str]


class Store(NamedTuple):
    """The bucket as the command lines of peers name it."""

    endpoint: str
    bucket: str
    key: str
    secret: str

    @classmethod
    def of(cls, place: Place) -> Store:
        """ConfigError unless the origin is an S3 server with an address and a pair of keys."""
        options: dict[str, Any] = place.options
        endpoint = options.get("endpoint_url") or (options.get("client_kwargs") or {}).get("endpoint_url")
        key, secret = options.get("key"), options.get("secret")
        if place.protocol != "s3" or not (endpoint and key and secret) or options.get("token"):
            raise ConfigError(
                "--against needs an S3 origin with endpoint_url, key and secret, such as the server that is started "
                "without --origin"
            )
        return cls(str(endpoint), place.root.partition("/")[0], str(key), str(secret))


class Peer(ABC):
    """One program during one run. ``directory`` is its own, on the same disk as our cache."""

    name: ClassVar[str]
    install: ClassVar[str]
    """How to get it."""
    own_format: ClassVar[bool] = False
    """It does not read the objects themselves, so it must ``adopt`` each data set."""
    tuning: ClassVar[str]
    """One sentence for the report: what was set, and why that is fair."""

    def __init__(self, place: Place, directory: Path) -> None:
        self.store = Store.of(place)
        self.place = place
        self.directory = directory
        self.binary = self.find()

    @classmethod
    def find(cls) -> str:
        """The program's path, or empty if it is not installed."""
        return find_command(cls.name)

    def version(self) -> str:
        """As the program tells it."""
        result = subprocess.run(
            [self.binary, "--version"], capture_output=True, text=True, timeout=VERSION_DEADLINE_S, check=False
        )
        found = re.search(r"\d+(\.\d+)+", result.stdout + result.stderr)
        return found.group() if found else "unknown"

    def serves(self, place: Place) -> bool:
        """Whether it can show that origin."""
        return place.protocol == "s3"

    @abstractmethod
    def launch(self, place: Place, mountpoint: Path, cache: Path, terms: Terms) -> Launch:
        """How ``place`` is mounted, with an empty directory for the cache."""

    def adopt(self, place: Place, dataset: DataSet, told: Told) -> None:  # noqa: B027 - most have nothing to do
        """Make a data set visible that the origin has, where ``own_format`` says so."""

    def close(self) -> None:  # noqa: B027 - most leave nothing
        """Remove what the run has left in the store."""


def last_words(text: str) -> str:
    """The end of a program's output, in one line."""
    words = " ".join(text.split())
    return words[-LAST_WORDS:] or "it said nothing"
