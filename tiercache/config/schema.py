"""The settings: sections, keys, defaults and what is allowed."""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tiercache.config.fields import Bytes, Count, Daily, Duration, Patterns, Rate, Share, Windows, at_least
from tiercache.config.limits import disk_total_bytes, memory_limit_bytes
from tiercache.config.profiles import PROFILES, Ack, Profile, ProfileName
from tiercache.config.quotas import Quotas, check_sum
from tiercache.config.section import Section
from tiercache.units import GIB, KIB, MIB, Size

PREFIX = "TIERCACHE_"
OTHER_VARIABLES = frozenset({"TIERCACHE_CONFIG", "TIERCACHE_DEBUG"})
"""Variables with our prefix that are no settings."""

ClientName = Literal["obstore", "s3fs"]
PolicyName = Literal["auto", "s3fifo", "wtinylfu", "sieve", "arc", "lfu", "gdsf", "lru", "fifo", "hold"]
"""All of ``tiercache.policies`` but ``planned``: the engine has no plan that it could tell it."""
EngineMode = Literal["auto", "attach", "inprocess"]


LAST = (
    ".metadata",
    "*.index.json",
    "trainer_state.json",
    "latest",
    "latest_checkpointed_iteration.txt",
)
"""What tells a reader that a checkpoint is there: PyTorch's DCP, sharded weights, Transformers, DeepSpeed, Megatron."""


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/tiercache``, which is usually ``~/.cache/tiercache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiercache"


def _absolute(value: object) -> object:
    """The engine runs in another working directory than the command that starts it."""
    if isinstance(value, str | os.PathLike) and os.fspath(value):
        return Path(os.fsdecode(value)).expanduser().absolute()
    return value


def _in_unicode(path: Path) -> Path:
    """py-lmdb, which keeps catalog and journal there, opens no other names."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        shown = os.fspath(path).encode(errors="backslashreplace").decode()
        raise ValueError(f"{shown} is not UTF-8; allowed: a path of UTF-8 characters") from None
    return path


LocalPath = Annotated[Path, BeforeValidator(_absolute)]


class RamConfig(Section):
    """The RAM tier: whole versions in files on tmpfs. Off unless asked for: see docs/decisions/0007."""

    capacity: Share = Size(0)
    """A share counts against the memory limit of the cgroup; 0 turns the tier off."""
    policy: PolicyName = "s3fifo"
    directory: LocalPath | None = None
    """Default: a directory under /dev/shm whose name is a digest of ``cache_dir``."""


class NvmeConfig(Section):
    """The NVMe tier: sparse files in the cache directory."""

    capacity: Share = Size(0, 0.80)
    """A share counts against the size of the disk that holds ``cache_dir``."""
    free_space_floor: Share = Size(0, 0.05)
    """Free space that is left alone, even when it is others who fill the disk."""
    policy: PolicyName = "auto"
    max_object_share: float = Field(default=0.5, gt=0, le=1)
    """An object larger than this share of the capacity is streamed, not kept."""
    pinned_share_max: float = Field(default=0.5, gt=0, le=1)
    """Pins keep at most this share of the capacity from being evicted."""
    include: Patterns = ()
    """Globs as those of rules: what is kept; empty = everything."""
    exclude: Patterns = ()
    """What of that is not kept."""
    quotas: Quotas = ()
    """Of several that match, the first one counts. What matches none shares the rest of the capacity."""
    daily_writes_max: Daily = math.inf
    """Bytes that reads may write in a day, spread over it: what the disk is meant to bear."""
    second_miss_s: Duration = 0.0
    """An object is kept when it is missed again within this time; 0 = at once."""
    second_miss_apart_s: Duration = 60.0
    """Misses nearer to one another than this are one."""
    second_miss_keys: int = Field(default=1_000_000, ge=1, le=2**32)
    """So many missed objects are remembered, in about 250 bytes each."""
    slow_s: Duration = 1.0
    """A disk of which the median block (4 MiB) takes longer to read is taken out of use until it is quicker."""


class StagingConfig(Section):
    """Written bytes that the origin does not have yet."""

    capacity: Share = Size(0, 0.10)
    upload_delay_s: Duration = 0.0
    """How long a closed file waits before its upload, so that temporary files are never sent."""
    wait_max_s: Duration = 300.0
    """How long a writer waits for uploads while others fill the disk, before it gets ENOSPC."""
    mapped_check_s: Annotated[Duration, Field(gt=0)] = 1.0
    """How often a closed file that a program has mapped for writing is looked at: it goes up when it is no more."""


class FetchConfig(Section):
    """Requests to origins."""

    concurrency: Count = 64
    timeout_s: Duration = 30.0
    """Without a byte moving for this long, a request has failed."""
    connect_timeout_s: Duration = 5.0
    retries: int = Field(default=8, ge=0, le=100)
    retry_base_s: Duration = 0.1
    retry_cap_s: Duration = 5.0
    retry_deadline_s: Duration = 60.0
    """After this long in all, the reader gets the error."""
    part_size: Annotated[Bytes, at_least(64 * KIB)] = 16 * MIB
    """Length of one ranged GET of a large read."""
    buffer_bytes: Annotated[Bytes, at_least(MIB)] = 512 * MIB
    """Bound on the bytes of fills in flight."""


class ReadaheadConfig(Section):
    """Sequential read-ahead. ``budget_bytes = 0`` turns it off."""

    budget_bytes: Bytes = 256 * MIB
    """Over all open files together."""
    window_max_bytes: Bytes = 64 * MIB
    window_min_bytes: Annotated[Bytes, at_least(64 * KIB)] = 4 * MIB
    extents_max: int = Field(default=262_144, ge=0, le=2**32)
    """So many pieces of files are known by their headers (safetensors, .pt, .npz, …), in 32 bytes each; 0 = headers are
    not looked at."""


class PlanConfig(Section):
    """Files that are brought before they are read, where a reader has told its order."""

    budget_bytes: Annotated[Bytes, at_least(MIB)] = 2 * GIB
    """Of what was brought and not read yet, over all plans together."""
    lead_min: Count = 256
    """So many files ahead of its reader a plan is at least, within the budget …"""
    lead_max: Count = 4096
    """… and at most. In between the reader's rate and the origin's latency tell."""
    idle_s: Duration = 600.0
    """A plan of which nothing is read for so long is given up."""
    push_max_bytes: Bytes = MIB
    """A file of up to so many bytes is put into the kernel's page cache where that is possible; 0: none is."""


class ScanConfig(Section):
    """Files that are brought before they are read, where nobody told: those that probably come next in a directory."""

    files_max: int = Field(default=4096, ge=0, le=65536)
    """So many are ahead of the readers of one origin, within half of ``plan.budget_bytes``; 0 = none."""
    idle_s: Annotated[Duration, Field(gt=0)] = 60.0
    """What is not read for so long is not waited for any more."""


class UploadConfig(Section):
    """Write-back to the origin."""

    concurrency: Count = 8
    part_size: Annotated[Bytes, at_least(5 * KIB)] = 16 * MIB
    part_concurrency: Count = 8
    """Parts in flight at a time to one origin, one of each file in turn."""
    buffer_bytes: Annotated[Bytes, at_least(MIB)] = 256 * MIB
    """Over all uploads together."""
    last: Patterns = LAST
    """Names of files that go up after all that was written below their directory before them."""
    bandwidth_max: Rate = math.inf
    """Of all uploads together."""
    windows: Windows = ()
    """Hours of the day, local time, in which another rate counts than ``bandwidth_max``."""
    retry_base_s: Duration = 0.5
    retry_cap_s: Duration = 30.0


class CheckpointsConfig(Section):
    """Which directories and files are checkpoints, and what becomes of them."""

    patterns: Patterns = (
        "checkpoint-*",
        "checkpoint_*",
        "ckpt-*",
        "ckpt_*",
        "step-*",
        "step_*",
        "global_step*",
        "iter_*",
        "*.ckpt",
    )
    """By their names; a directory with a manifest in it (DCP's ``.metadata``, ``*.index.json``) is one too."""
    keep_last: int = Field(default=1, ge=0, le=64)
    """So many of the newest complete ones of a directory that were written here stay in the NVMe tier."""
    level: Literal["memory", "local", "origin"] = "origin"
    """A checkpoint is complete when all of its files have reached this."""
    settle_s: Annotated[Duration, Field(le=3600)] = 10.0
    """And when nothing in it has changed for so long, where no file in it tells that all are there."""


class TraceConfig(Section):
    """The record of what is read, for ``tiercache advise``; in ``cache_dir/trace``."""

    on: bool = False
    sample: float = Field(default=1.0, gt=0, le=1)
    """Of all versions this share is recorded, with all of its reads."""
    max_bytes: Annotated[Bytes, at_least(MIB)] = 256 * MIB
    """A read takes about 25 bytes; when it is full the older half goes."""
    buffer_reads: int = Field(default=65_536, ge=1, le=10_000_000)
    """So many reads wait to be written; further ones are lost, and counted."""


class WhyConfig(Section):
    """What ``tiercache why`` can tell."""

    entries: int = Field(default=10_000, ge=0, le=10_000_000)
    """So many decisions are remembered, in about 400 bytes each; 0 = none."""


class MetricsConfig(Section):
    """Prometheus text over HTTP."""

    listen: str = ""
    """``127.0.0.1:9100``; empty = off."""

    @field_validator("listen")
    @classmethod
    def _has_host_and_port(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if value and not (host and port.isdigit() and int(port) < 65536):
            raise ValueError(f"{value!r} is not an address; allowed: HOST:PORT such as 127.0.0.1:9100, or nothing")
        return value


class EngineConfig(Section):
    """The process that owns a cache directory."""

    mode: EngineMode = "auto"
    idle_timeout_s: Duration = 300.0
    """An engine that was started on demand ends after this long without clients, mounts and dirty files."""
    request_timeout_s: Duration = 300.0
    start_timeout_s: Duration = 30.0
    max_clients: Count = 1024
    stop_drain_s: Duration = 60.0
    """How long an engine that is told to end goes on uploading; the rest stays in the journal."""
    umount_wait_s: Duration = 2.0
    """How long a mount that was unmounted is expected to end. One that goes on is mounted elsewhere too, as in a
    container that copied the mounts; it is served there until it ends."""
    restart_limit: Count = 10
    """After so many restarts of a crashed engine within ``restart_window_s`` its mounts are given up."""
    restart_window_s: Duration = 300.0
    restart_backoff_s: Duration = 0.25
    """Pause before the second try to bring up an engine that failed to start; it doubles with each, up to 10 s."""


class CatalogConfig(Section):
    """The catalog's file; it is sparse, the figure is only its bound."""

    map_size_bytes: Annotated[Bytes, at_least(16 * MIB)] = 16 * GIB


class OriginConfig(Section):
    """An origin under a name, for ``tiercache://NAME/key``."""

    url: str = Field(min_length=1)
    client: ClientName = "obstore"
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the client: ``key``, ``secret``, ``endpoint_url``, ``profile``, …"""
    profile: ProfileName = "general"


class ProfileConfig(Section):
    """Changes to a built-in profile; what is None stays as built in."""

    ttl_s: Duration | None = None
    negative_ttl_s: Annotated[Duration, Field(le=5)] | None = None
    read_only: bool | None = None
    upload: bool | None = None
    posix_metadata: bool | None = None
    ack: Ack | None = None
    sync_on_close: bool | None = None


class RuleConfig(Section):
    """What is promised of files by their path, whatever their profile says. Of several rules that match, the first
    that tells a thing tells it."""

    path: str = Field(min_length=1)
    """A glob over a file's path at its origin. One that begins with a slash begins at the top (of the bucket, or of the
    file tree), another anywhere; one that ends with a slash means all that is below. ``*`` and ``?`` stay within one
    name, ``**`` stands for any number of directories."""
    ack: Ack | None = None
    sync_on_close: bool | None = None

    @model_validator(mode="after")
    def _tells_something(self) -> Self:
        if self.ack is None and self.sync_on_close is None:
            raise ValueError("tells nothing; allowed: ack, sync_on_close")
        return self


class Config(Section):
    """All settings of one cache directory."""

    cache_dir: Annotated[LocalPath, AfterValidator(_in_unicode)] = Field(
        default_factory=default_cache_dir, validate_default=True
    )
    memory_max: Share = Size(0, 0.50)
    """The engine's own memory stays below this. A share counts against the memory limit of the cgroup."""
    verify: Literal["open", "read"] = "open"
    """When the checksum of a cached block is checked: at the first open after a start, or at each read."""
    ram: RamConfig = RamConfig()
    nvme: NvmeConfig = NvmeConfig()
    staging: StagingConfig = StagingConfig()
    fetch: FetchConfig = FetchConfig()
    readahead: ReadaheadConfig = ReadaheadConfig()
    plan: PlanConfig = PlanConfig()
    scan: ScanConfig = ScanConfig()
    upload: UploadConfig = UploadConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    why: WhyConfig = WhyConfig()
    trace: TraceConfig = TraceConfig()
    metrics: MetricsConfig = MetricsConfig()
    engine: EngineConfig = EngineConfig()
    catalog: CatalogConfig = CatalogConfig()
    profiles: dict[ProfileName, ProfileConfig] = Field(default_factory=dict)
    origins: dict[str, OriginConfig] = Field(default_factory=dict)
    rules: tuple[RuleConfig, ...] = ()

    @field_validator("nvme")
    @classmethod
    def _quotas_leave_a_rest(cls, nvme: NvmeConfig, info: ValidationInfo) -> NvmeConfig:
        if nvme.quotas and "cache_dir" in info.data:
            check_sum(nvme.quotas, nvme.capacity.resolve(disk_total_bytes(info.data["cache_dir"])))
        return nvme

    def profile(self, name: ProfileName) -> Profile:
        """The built-in profile with this configuration's changes."""
        changes = self.profiles.get(name, ProfileConfig()).model_dump(exclude_none=True)
        return PROFILES[name].model_copy(update=changes)

    @property
    def ram_directory(self) -> Path:
        """Where the RAM tier lives: one directory per cache directory and user."""
        return self.ram.directory or Path(f"/dev/shm/tiercache-{os.geteuid()}-{self.cache_id}")

    @property
    def cache_id(self) -> str:
        """A short name of the cache directory, where its path does not fit."""
        return hashlib.blake2b(os.fsencode(self.cache_dir), digest_size=8).hexdigest()

    def memory_max_bytes(self) -> int:
        """The ceiling of the engine's memory."""
        return self.memory_max.resolve(memory_limit_bytes())

    def ram_capacity_bytes(self) -> int:
        """Bytes of the RAM tier; never more than its tmpfs has (a container's /dev/shm is often 64 MiB)."""
        wanted_bytes = self.ram.capacity.resolve(memory_limit_bytes())
        return min(wanted_bytes, int(disk_total_bytes(self.ram_directory) * 0.9))

    def nvme_capacity_bytes(self) -> int:
        """Bytes of the NVMe tier."""
        return self.nvme.capacity.resolve(disk_total_bytes(self.cache_dir))

    def free_space_floor_bytes(self) -> int:
        """Bytes of the disk that the NVMe tier leaves free."""
        return self.nvme.free_space_floor.resolve(disk_total_bytes(self.cache_dir))

    def staging_capacity_bytes(self) -> int:
        """The budget of staged bytes."""
        return self.staging.capacity.resolve(disk_total_bytes(self.cache_dir))
