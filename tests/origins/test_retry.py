"""Retrying: what is repeated, for how long, and how it ends; on the POSIX origin with failures put in front."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiercache.errors import Absent, Broken, Busy, Exists
from tiercache.metrics import Metrics
from tiercache.origins import RetryingOrigin, RetryPolicy, Source, Upload, open_origin
from tiercache.origins.posix import PosixOrigin

QUICK = RetryPolicy(retries=5, base_s=0.0001, cap_s=0.0002, deadline_s=10.0)


class Failing(PosixOrigin):
    """Raises what it is told before (or, with ``after``, behind) the real call, a number of times."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.after = False
        self.calls = 0

    def _run(self, call: Callable[[], Any]) -> Any:
        self.calls += 1
        if self.failures and not self.after:
            raise self.failures.pop(0)
        result = call()
        if self.failures:
            raise self.failures.pop(0)
        return result

    def stat(self, key: bytes) -> Any:
        return self._run(lambda: super(Failing, self).stat(key))

    def delete(self, key: bytes, etag: str = "") -> None:
        self._run(lambda: super(Failing, self).delete(key, etag))

    def make_directory(self, key: bytes, attributes: Any = None) -> Any:
        return self._run(lambda: super(Failing, self).make_directory(key, attributes))

    def rename(self, source: bytes, target: bytes, *, no_replace: bool = False, exchange: bool = False) -> None:
        self._run(lambda: super(Failing, self).rename(source, target, no_replace=no_replace, exchange=exchange))

    def write(self, key: bytes, source: Source, **arguments: Any) -> Any:
        return self._run(lambda: super(Failing, self).write(key, source, **arguments))


@pytest.fixture
def failing() -> Failing:
    return Failing()


def key_of(path: Path) -> bytes:
    return open_origin(str(path))[1]


def test_busy_is_repeated_until_it_is_well(failing: Failing, tmp_path: Path) -> None:
    metrics = Metrics()
    failing.failures = [Busy("1"), Busy("2")]
    RetryingOrigin(failing, QUICK, metrics).stat(key_of(tmp_path))
    assert failing.calls == 3
    snapshot = metrics.snapshot()
    assert snapshot["retries_total"] == {"stat": 2.0}
    assert snapshot["origin_requests_total"] == {"stat/busy": 2.0, "stat/ok": 1.0}


def test_after_the_last_retry_the_error_comes_out(failing: Failing, tmp_path: Path) -> None:
    failing.failures = [Busy(str(number)) for number in range(50)]
    with pytest.raises(Busy, match="5"):
        RetryingOrigin(failing, QUICK).stat(key_of(tmp_path))
    assert failing.calls == QUICK.retries + 1


def test_the_deadline_ends_it_too(failing: Failing, tmp_path: Path) -> None:
    failing.failures = [Busy(str(number)) for number in range(50)]
    with pytest.raises(Busy):
        RetryingOrigin(failing, QUICK._replace(deadline_s=0.0, retries=1000)).stat(key_of(tmp_path))
    assert failing.calls <= 2


@pytest.mark.parametrize("error", [Absent("x"), Broken("x"), Exists("x")])
def test_other_errors_are_not_repeated(failing: Failing, tmp_path: Path, error: Exception) -> None:
    failing.failures = [error]
    with pytest.raises(type(error)):
        RetryingOrigin(failing, QUICK).stat(key_of(tmp_path))
    assert failing.calls == 1


def test_the_wait_grows_to_the_cap_and_is_jittered() -> None:
    policy = RetryPolicy(base_s=0.1, cap_s=5.0)
    assert [policy.delay_s(number, lambda: 1.0) for number in range(8)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    )
    assert policy.delay_s(10_000, lambda: 0.5) == 2.5
    assert policy.delay_s(3, lambda: 0.0) == 0.0


def test_close_ends_a_wait_at_once(failing: Failing, tmp_path: Path) -> None:
    failing.failures = [Busy(str(number)) for number in range(50)]
    origin = RetryingOrigin(failing, RetryPolicy(retries=50, base_s=1e6, cap_s=1e6, deadline_s=1e9))
    errors: list[Exception] = []

    def run() -> None:
        try:
            origin.stat(key_of(tmp_path))
        except Busy as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    origin.close()
    thread.join(10.0)
    assert not thread.is_alive()
    assert len(errors) == 1


def test_a_change_whose_answer_was_lost_counts_as_done(failing: Failing, tmp_path: Path) -> None:
    failing.after = True
    origin = RetryingOrigin(failing, QUICK)
    failing.failures = [Busy("lost")]
    origin.make_directory(key_of(tmp_path / "dir"))
    (tmp_path / "file").write_bytes(b"1")
    failing.failures = [Busy("lost")]
    origin.delete(key_of(tmp_path / "file"))
    assert [path.name for path in tmp_path.iterdir()] == ["dir"]


def test_without_a_lost_answer_the_same_is_an_error(failing: Failing, tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    origin = RetryingOrigin(failing, QUICK)
    with pytest.raises(Exists):
        origin.make_directory(key_of(tmp_path / "dir"))
    with pytest.raises(Absent):
        origin.delete(key_of(tmp_path / "nothing"))


def test_a_rename_is_not_repeated(failing: Failing, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    failing.failures = [Busy("1")]
    with pytest.raises(Busy):
        RetryingOrigin(failing, QUICK).rename(key_of(tmp_path / "a"), key_of(tmp_path / "b"))
    assert failing.calls == 1


def test_progress_of_repeated_writes_adds_up_to_the_size(failing: Failing, tmp_path: Path) -> None:
    path = tmp_path / "source"
    path.write_bytes(bytes(100_000))
    failing.after = True
    failing.failures = [Busy("lost"), Busy("lost")]
    sent: list[int] = []
    RetryingOrigin(failing, QUICK).write(
        key_of(tmp_path / "target"),
        Upload(Source(str(path), 100_000), upload_id="mine", progress=sent.append),
    )
    assert sum(sent) == 100_000
    assert failing.calls == 3
