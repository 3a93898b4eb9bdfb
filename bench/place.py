"""Where the truth lies during a run: a prefix of a bucket or a directory, made for it and removed after it."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tiercache.bench.dataset import DataSet, Told
from tiercache.bench.proxy import SlowLine, Traffic
from tiercache.bench.s3server import SeaweedFS, make_bucket
from tiercache.bench.slowness import Slowness
from tiercache.config.aws import with_aws_environment
from tiercache.errors import Absent, ConfigError
from tiercache.model import Kind
from tiercache.origins import Origin, open_origin
from tiercache.origins.base import Source, Upload

UPLOADS_AT_A_TIME = 8
FIRST = "first"


class Place(NamedTuple):
    """An empty place of our own in an origin."""

    protocol: str
    """``s3`` or ``file``."""
    url: str
    options: dict[str, Any]
    """What every measured target uses: they lead through the slow line if there is one."""
    direct_options: dict[str, Any]
    description: str
    slowness: Slowness | None = None
    line: SlowLine | None = None
    passing: bool = False
    """In a server of our own, which goes as a whole."""

    @property
    def root(self) -> str:
        """The path in the spelling of an fsspec filesystem: ``bucket/prefix`` or ``/path``."""
        return self.url.partition("://")[2]

    @property
    def engine_options(self) -> dict[str, Any]:
        """The options that our engine opens it with."""
        if self.protocol == "file" and self.slowness:
            return self.slowness.engine_options()
        return self.options

    def below(self, name: str) -> Place:
        """A part of it."""
        return self._replace(url=f"{self.url}/{name}")

    def beside(self, name: str) -> Place:
        """Another prefix of the same bucket."""
        return self._replace(url=f"s3://{self.root.partition('/')[0]}/{name}")

    @classmethod
    def of_directory(cls, directory: Path) -> Place:
        """A directory as it is, to be read only."""
        return cls("file", f"file://{directory}", {}, {}, f"the directory {directory}")

    def establish(self) -> None:
        """Make it exist, as some mounts need: a directory, or in a store a first small object."""
        if self.protocol == "file":
            Path(self.root).mkdir(parents=True, exist_ok=True)
            return
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / FIRST).write_text("first")
            self.upload(DataSet("", Path(directory), {FIRST: len("first")}, ()), lambda size_bytes: None)

    def traffic(self) -> Traffic | None:
        """What went through the slow line so far; None without one."""
        return self.line.traffic() if self.line else None

    def upload(self, dataset: DataSet, told: Told) -> None:
        """Store a data set's files, not slowed down."""
        origin, root = self._open()

        def put(name: str) -> None:
            size_bytes = dataset.files[name]
            source = Source(str(dataset.directory / name), size_bytes)
            key = root + b"/" + name.encode()
            origin.write(key, Upload(source))
            told(size_bytes)

        with ThreadPoolExecutor(UPLOADS_AT_A_TIME) as pool:
            for _ in pool.map(put, dataset.files):
                pass
        origin.close()

    def read(self, name: str) -> bytes:
        """What the origin itself holds under a name."""
        origin, root = self._open()
        key = root + b"/" + name.encode()
        stat = origin.stat(key)
        data = bytes(origin.read(key, 0, stat.size_bytes, stat.etag)) if stat.size_bytes else b""
        origin.close()
        return data

    def remove(self) -> None:
        """Remove everything in it."""
        if self.protocol == "file":
            shutil.rmtree(self.root, ignore_errors=True)
            return
        origin, root = self._open()
        # Deepest first: a directory's marker goes after what is in it.
        try:
            found = sorted(origin.walk(root), key=lambda stat: stat.key, reverse=True)
        except Absent:
            found = []  # everything in it was removed, and with it the prefix
        with ThreadPoolExecutor(UPLOADS_AT_A_TIME) as pool:
            for _ in pool.map(origin.delete, [stat.key for stat in found if stat.kind is not Kind.DIRECTORY]):
                pass
        for stat in found:
            if stat.kind is Kind.DIRECTORY:
                origin.remove_directory(stat.key)
        origin.close()

    def _open(self) -> tuple[Origin, bytes]:
        return open_origin(self.url, options=self.direct_options)


@contextmanager
def make_place(
    url: str, options: Mapping[str, Any], *, slowness: Slowness | None, work_directory: Path
) -> Iterator[Place]:
    """A new place below ``url`` (an S3 URL or a directory), or in an S3 server of our own if that is empty.

    ConfigError for another kind of URL. Nothing of it is left behind.
    """
    with ExitStack() as stack:
        place = _existing(url, options) if url else _own_server(stack, work_directory)
        place = place.below(f"tiercache-bench-{uuid.uuid4().hex[:8]}")
        if slowness and place.protocol == "s3":
            if slowness.serial:
                raise ConfigError("--simulate-origin: serial=yes is for a directory; an object store has many heads")
            line = stack.enter_context(SlowLine(_endpoint(place.options), slowness))
            client_options = {**place.options.get("client_kwargs", {})}
            client_options.pop("endpoint_url", None)
            place = place._replace(
                line=line, options={**place.options, "endpoint_url": line.endpoint, "client_kwargs": client_options}
            )
        place = place._replace(slowness=slowness)
        if not place.passing:
            stack.callback(place.remove)
        place.establish()
        yield place


def _existing(url: str, options: Mapping[str, Any]) -> Place:
    protocol, separator, rest = url.rstrip("/").partition("://")
    if not separator or protocol in ("file", "local"):
        directory = Path(rest if separator else url).expanduser().absolute()
        if not directory.is_dir():
            raise ConfigError(f"--origin: {directory} is not a directory")
        return Place.of_directory(directory)
    if protocol not in ("s3", "s3a"):
        raise ConfigError(f"--origin: {url} cannot be measured; allowed: s3://BUCKET/PREFIX or a directory")
    filled = with_aws_environment(url, options)
    server = _endpoint(filled) or "AWS"
    return Place("s3", f"s3://{rest}", filled, filled, f"s3://{rest} at {server}")


def _own_server(stack: ExitStack, work_directory: Path) -> Place:
    directory = work_directory / "s3"
    directory.mkdir()
    try:
        server = stack.enter_context(SeaweedFS(directory))
    except RuntimeError as error:
        raise ConfigError(f"{error}, or give an origin: --origin s3://BUCKET/PREFIX or a directory") from None
    make_bucket(server, "tiercache-bench")
    options = server.options()
    return Place(
        "s3",
        "s3://tiercache-bench",
        dict(options),
        dict(options),
        "a SeaweedFS S3 server on this machine",
        passing=True,
    )


def _endpoint(options: Mapping[str, Any]) -> str:
    return str(options.get("endpoint_url") or (options.get("client_kwargs") or {}).get("endpoint_url") or "")
