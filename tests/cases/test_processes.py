"""Cases of many processes on one node, through fsspec, over a real S3 server with a slow and unreliable line."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.engines import small_config, stop_engine
from rig.faultproxy import FaultProxy
from rig.seaweedfs import Bucket
from tiercache.filesystem import TierCacheFileSystem
from tiercache.model import BLOCK_SIZE_BYTES

DATA = random.Random(6).randbytes(BLOCK_SIZE_BYTES * 7 // 2)
DIGEST = hashlib.sha256(DATA).hexdigest()

READER = """
import hashlib, json, sys
from tiercache.filesystem import TierCacheFileSystem
fs = TierCacheFileSystem(**json.loads(sys.argv[1]))
how, path = sys.argv[2:]
if how == "all":
    print(hashlib.sha256(fs.cat_file(path)).hexdigest())
else:
    file = fs.open(path)
    if how == "ten":
        assert len(file.read(100)) == 100
    print("open", flush=True)
    sys.stdin.read()
"""


class Slow:
    """A bucket behind the fault proxy, and processes that read it through one engine."""

    def __init__(self, bucket: Bucket, proxy: FaultProxy, directory: Path) -> None:
        self.proxy = proxy
        self.path = f"{bucket.name}/object"
        bucket.put("object", DATA)
        self.config = small_config(directory)
        settings = {
            "ram.capacity": "64MiB",
            "ram.directory": str(directory / "ram"),
            "nvme.capacity": "256MiB",
            "nvme.free_space_floor": "0",
            "engine.stop_drain_s": 0,
        }
        self.arguments = {
            "target_protocol": "s3",
            "target_options": proxy.options(),
            "cache_dir": str(self.config.cache_dir),
            "settings": settings,
        }

    def start(self, how: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", READER, json.dumps(self.arguments), how, self.path]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def filesystem(self) -> TierCacheFileSystem:
        return TierCacheFileSystem(**self.arguments, skip_instance_cache=True)

    def bytes_fetched_twice(self) -> int:
        """How much of the object was asked for more than once. The GET that opens an unknown name has no range; of an
        object over a block its body is left unread."""
        asked = bytearray(len(DATA))
        twice = 0
        for logged in self.proxy.log:
            if logged.operation == "GetObject" and logged.key == b"object" and logged.range:
                start, end = map(int, logged.range[6:].split("-"))
                twice += asked.count(1, start, end + 1)
                asked[start : end + 1] = b"\1" * len(asked[start : end + 1])
        return twice


@pytest.fixture
def slow(s3_bucket: Bucket, s3_proxy: FaultProxy, tmp_path: Path) -> Iterator[Slow]:
    ground = Slow(s3_bucket, s3_proxy, tmp_path)
    yield ground
    stop_engine(ground.config)


def test_threads_and_processes_read_one_cold_key_with_one_fetch_per_block(slow: Slow) -> None:
    """C06."""
    slow.proxy.delay(1.0, operation="GetObject")
    processes = [slow.start("all") for _ in range(4)]
    fs = slow.filesystem()
    digests: list[str] = []
    threads = [
        threading.Thread(target=lambda: digests.append(hashlib.sha256(fs.cat_file(slow.path)).hexdigest()))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    digests += [process.communicate(timeout=60)[0].strip() for process in processes]
    assert digests == [DIGEST] * 20
    assert slow.bytes_fetched_twice() == 0
    versions = [path for path in (slow.config.cache_dir / "nvme").rglob("*") if path.is_file()]
    assert len(versions) == 1
    assert list((slow.config.cache_dir / "staging").glob("[0-9]*")) == []


@pytest.mark.parametrize("how", ["unread", "ten"])
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_process_that_goes_away_does_not_spoil_the_file(slow: Slow, how: str, end: str) -> None:
    """C07."""
    first = slow.start(how)
    assert first.stdout is not None
    assert first.stdout.readline() == "open\n"
    if end == "kill":
        first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    second = slow.start("all")
    assert second.communicate(timeout=60)[0].strip() == DIGEST
    assert slow.bytes_fetched_twice() == 0
