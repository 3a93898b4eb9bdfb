"""Retrying around any origin: the one place with back-off, jitter, cap and deadline."""

from __future__ import annotations

import functools
import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from tiercache.config import FetchConfig
from tiercache.errors import Absent, Busy, Changed, Exists, TierCacheError, Unsupported
from tiercache.metrics import Metrics
from tiercache.model import Attributes, Capability, Key, Kind, ObjectStat, Space
from tiercache.origins.base import Origin, Progress, Repeating, Stream, StreamingOrigin, Upload
from tiercache.origins.http_status import UploadGone

T = TypeVar("T")


ENTRIES_AT_ONCE = 256
"""Of a listing that has no pages of its own, so many count as one request."""


class RetryPolicy(NamedTuple):
    """Wait ``random(0, min(cap_s, base_s * 2**n))`` before the n-th retry ("full jitter"), within the deadline."""

    retries: int = 8
    base_s: float = 0.1
    cap_s: float = 5.0
    deadline_s: float = 60.0

    @classmethod
    def of(cls, fetch: FetchConfig) -> RetryPolicy:
        return cls(fetch.retries, fetch.retry_base_s, fetch.retry_cap_s, fetch.retry_deadline_s)

    def delay_s(self, attempt: int, jitter: Callable[[], float] = random.random) -> float:
        """The wait before retry number ``attempt`` (the first is 0)."""
        return jitter() * min(self.cap_s, self.base_s * 2.0 ** min(attempt, 63))


@runtime_checkable
class PagedOrigin(Protocol):
    """An origin whose listings can be retried page by page."""

    def list_with(self, call: Callable[[Callable[[], T]], T], directory: Key) -> Iterator[ObjectStat]: ...

    def walk_with(self, call: Callable[[Callable[[], T]], T], directory: Key) -> Iterator[ObjectStat]: ...


@runtime_checkable
class PartsOrigin(Protocol):
    """An origin that copies large objects part by part, and can have each part retried for itself."""

    def copy_with(self, repeating: Repeating, source: Key, target: Key, etag: str = "") -> ObjectStat: ...

    def set_attributes_with(
        self, repeating: Repeating, key: Key, attributes: Attributes, etag: str = ""
    ) -> ObjectStat: ...


class _Exhausted(Busy):
    """The tries of one request of a write are used up: the write is not repeated for it."""


class RetryingOrigin:
    """Repeats what was Busy and is safe to repeat. ``close`` ends every wait at once.

    A request that changes something may have been done although its answer was lost; the repeated one then meets its
    own effect: Changed by our own upload id, Absent after our own delete, Exists after our own mkdir or symlink.
    These count as success. ``rename`` and ``link`` cannot tell and are not repeated.
    """

    def __init__(self, origin: Origin, policy: RetryPolicy, metrics: Metrics | None = None) -> None:
        self._origin = origin
        self._policy = policy
        self._figures = None if metrics is None else _Figures(metrics)
        self._closed = threading.Event()

    @property
    def origin(self) -> Origin:
        """What is wrapped."""
        return self._origin

    @property
    def identity(self) -> str:
        return self._origin.identity

    def require_key(self, key: Key) -> None:
        self._origin.require_key(key)

    @property
    def capabilities(self) -> Capability:
        return self._origin.capabilities

    def stat(self, key: Key) -> ObjectStat:
        return self._retrying("stat", lambda _: self._origin.stat(key))

    def list(self, directory: Key) -> Iterator[ObjectStat]:
        if isinstance(self._origin, PagedOrigin):
            return self._origin.list_with(self._pages("list"), directory)
        return self._resumed("list", lambda: self._origin.list(directory))

    def walk(self, directory: Key) -> Iterator[ObjectStat]:
        if isinstance(self._origin, PagedOrigin):
            return self._origin.walk_with(self._pages("walk"), directory)
        return self._resumed("walk", lambda: self._origin.walk(directory))

    def read(self, key: Key, offset: int, length: int, etag: str) -> memoryview:
        data = self._retrying("read", lambda _: self._origin.read(key, offset, length, etag))
        self._count_bytes("read", len(data))
        return data

    def read_whole(self, key: Key, limit_bytes: int) -> tuple[ObjectStat, memoryview | None]:
        found, data = self._retrying("read", lambda _: self._origin.read_whole(key, limit_bytes))
        self._count_bytes("read", len(data) if data is not None else 0)
        return found, data

    def write(self, key: Key, upload: Upload) -> ObjectStat:
        sent = _Furthest(upload.progress)

        def attempt(repeated: bool) -> ObjectStat:
            try:
                return self._origin.write(key, upload._replace(progress=sent.restarted(), repeating=self._repeating))
            except Changed:
                ours = self._origin.stat(key) if repeated and upload.upload_id else None
                if ours is None or ours.upload_id != upload.upload_id:
                    raise
                return ours

        written = self._retrying_all("write", attempt)
        self._count_bytes("written", upload.source.size_bytes)
        return written

    def stream(self, key: Key, upload: Upload, *, part_max_bytes: int) -> Stream:
        """``StreamingOrigin.stream``; each of its requests is retried for itself."""
        if not isinstance(self._origin, StreamingOrigin):
            raise Unsupported(f"{self.identity} takes no object whose size is not known")

        def progress(sent_bytes: int) -> None:
            self._count_bytes("written", sent_bytes)
            if upload.progress is not None:
                upload.progress(sent_bytes)

        told = upload._replace(progress=progress, repeating=self._repeating)
        return self._origin.stream(key, told, part_max_bytes=part_max_bytes)

    def _retrying_all(self, op: str, attempt: Callable[[bool], T]) -> T:
        """``_retrying`` for what retries its own requests by ``_repeating``."""
        try:
            return self._retrying(op, attempt)
        except _Exhausted as error:
            raise Busy(str(error)) from error

    def _repeating(self, request: Callable[[], T]) -> T:
        try:
            return self._retrying("part", lambda _: request(), long=True)
        except UploadGone:
            raise
        except Busy as error:
            raise _Exhausted(str(error)) from error

    def abort_uploads(self, key: Key, upload_id: str, parted_id: str = "") -> None:
        self._retrying("abort", lambda _: self._origin.abort_uploads(key, upload_id, parted_id))

    def delete(self, key: Key, etag: str = "") -> None:
        def attempt(repeated: bool) -> None:
            try:
                self._origin.delete(key, etag)
            except Absent:
                if not repeated:
                    raise

        self._retrying("delete", attempt)

    def copy(self, source: Key, target: Key, etag: str = "") -> ObjectStat:
        origin = self._origin
        if isinstance(origin, PartsOrigin):
            return self._retrying_all("copy", lambda _: origin.copy_with(self._repeating, source, target, etag))
        return self._retrying("copy", lambda _: origin.copy(source, target, etag))

    def rename(self, source: Key, target: Key, *, no_replace: bool = False, exchange: bool = False) -> None:
        self._once("rename", lambda: self._origin.rename(source, target, no_replace=no_replace, exchange=exchange))

    def make_directory(self, key: Key, attributes: Attributes | None = None) -> ObjectStat:
        def make() -> ObjectStat:
            return self._origin.make_directory(key, attributes)

        return self._made("mkdir", key, make, lambda found: found.kind is Kind.DIRECTORY)

    def remove_directory(self, key: Key) -> None:
        def attempt(repeated: bool) -> None:
            try:
                self._origin.remove_directory(key)
            except Absent:
                if not repeated:
                    raise

        self._retrying("rmdir", attempt)

    def symlink(
        self, key: Key, target: bytes, attributes: Attributes | None = None, *, replaces: str = ""
    ) -> ObjectStat:
        def make() -> ObjectStat:
            return self._origin.symlink(key, target, attributes, replaces=replaces)

        return self._made("symlink", key, make, lambda found: found.link_target == target)

    def make_special(self, key: Key, kind: Kind, device: int, attributes: Attributes | None = None) -> ObjectStat:
        return self._once("mknod", lambda: self._origin.make_special(key, kind, device, attributes))

    def link(self, source: Key, target: Key) -> ObjectStat:
        return self._once("link", lambda: self._origin.link(source, target))

    def set_attributes(self, key: Key, attributes: Attributes, etag: str = "") -> ObjectStat:
        origin = self._origin
        if isinstance(origin, PartsOrigin):
            return self._retrying_all(
                "setattr", lambda _: origin.set_attributes_with(self._repeating, key, attributes, etag)
            )
        return self._retrying("setattr", lambda _: origin.set_attributes(key, attributes, etag))

    def space(self, key: Key) -> Space:
        return self._retrying("space", lambda _: self._origin.space(key))

    def close(self) -> None:
        self._closed.set()
        self._origin.close()

    def _made(
        self, op: str, key: Key, make: Callable[[], ObjectStat], is_ours: Callable[[ObjectStat], bool]
    ) -> ObjectStat:
        def attempt(repeated: bool) -> ObjectStat:
            try:
                return make()
            except (Exists, Changed):
                found = self._origin.stat(key) if repeated else None
                if found is None or not is_ours(found):
                    raise
                return found

        return self._retrying(op, attempt)

    def _pages(self, op: str) -> Callable[[Callable[[], T]], T]:
        return lambda request: self._retrying(op, lambda _: request())

    def _resumed(self, op: str, start: Callable[[], Iterator[ObjectStat]]) -> Iterator[ObjectStat]:
        """Start a listing over when it fails midway, leaving out what was told already."""
        told: set[Key] = set()
        entries = start()

        def advance(repeated: bool) -> list[ObjectStat]:
            nonlocal entries
            if repeated:
                entries = start()
            return list(itertools.islice((entry for entry in entries if entry.key not in told), ENTRIES_AT_ONCE))

        more = True
        while more:
            page = self._retrying(op, advance)
            more = len(page) == ENTRIES_AT_ONCE
            told.update(entry.key for entry in page)
            yield from page

    def _retrying(self, op: str, attempt: Callable[[bool], T], *, long: bool = False) -> T:
        """Call ``attempt(repeated)`` until it succeeds, fails for good, or the policy is exhausted. ``long``: it may
        take as long as the deadline even when all is well, which is therefore counted from the first failure."""
        give_up = math.inf if long else time.monotonic() + self._policy.deadline_s
        number = 0
        while True:
            try:
                return self._once(op, lambda: attempt(number > 0))  # noqa: B023 (called at once)
            except (_Exhausted, UploadGone):
                raise
            except Busy:
                give_up = min(give_up, time.monotonic() + self._policy.deadline_s)
                delay_s = self._policy.delay_s(number)
                if number >= self._policy.retries or time.monotonic() + delay_s > give_up:
                    raise
                if self._closed.wait(delay_s):
                    raise
            number += 1
            if self._figures is not None:
                self._figures.retries.labels(op=op).inc()

    def _once(self, op: str, attempt: Callable[[], T]) -> T:
        started = time.monotonic()
        outcome = "ok"
        try:
            return attempt()
        except TierCacheError as error:
            outcome = type(error).__name__.lower()
            raise
        except Exception:
            outcome = "bug"
            raise
        finally:
            if self._figures is not None:
                self._figures.request(op, outcome, time.monotonic() - started)

    def _count_bytes(self, direction: str, size_bytes: int) -> None:
        if self._figures is not None:
            self._figures.bytes[direction](size_bytes)


class _Figures:
    """What is told of each request. The children of a metric are kept: to find one takes longer than to count."""

    def __init__(self, metrics: Metrics) -> None:
        self.retries = metrics.retries
        self.bytes = {name: metrics.origin_bytes.labels(direction=name).inc for name in ("read", "written")}
        self._requests = functools.cache(lambda op, outcome: metrics.origin_requests.labels(op=op, outcome=outcome).inc)
        self._seconds = functools.cache(lambda op: metrics.origin_seconds.labels(op=op).observe)

    def request(self, op: str, outcome: str, took_s: float) -> None:
        self._requests(op, outcome)()
        self._seconds(op)(took_s)


class _Furthest:
    """Reports only progress beyond the furthest of earlier attempts, so that the sum never exceeds the size."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._furthest_bytes = 0

    def restarted(self) -> Progress | None:
        if self._progress is None:
            return None
        progress, sent_bytes = self._progress, 0

        def report(further_bytes: int) -> None:
            nonlocal sent_bytes
            sent_bytes += further_bytes
            beyond_bytes = max(0, sent_bytes - self._furthest_bytes)
            self._furthest_bytes += beyond_bytes
            progress(beyond_bytes)  # also for 0: it may raise to cancel

        return report
