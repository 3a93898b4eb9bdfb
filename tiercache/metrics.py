"""The engine's figures: one registry, passed down, readable as a dictionary and as Prometheus text."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, start_http_server

from tiercache.errors import ConfigError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_REQUEST_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters and gauges of one engine. Made by the engine and handed to its parts; nothing here is global."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        self.hits = self._counter("hits", "Reads answered by a tier", "tier")
        self.misses = self._counter("misses", "Reads that needed the origin")
        self.read_bytes = self._counter("read_bytes", "Bytes handed to readers, by where they came from", "tier")
        self.fill_bytes = self._counter("fill_bytes", "Bytes written into a tier", "tier")
        self.fills = self._counter("fills", "Versions that became complete in a tier", "tier")
        self.evictions = self._counter("evictions", "Versions evicted from a tier", "tier")
        self.evicted_bytes = self._counter("evicted_bytes", "Bytes evicted from a tier", "tier")
        self.rejected = self._counter("rejected", "Versions that a tier did not admit", "tier")
        self.refused = self._counter(
            "refused", "Misses whose bytes were not let in, by what refused them", "tier", "why"
        )
        self.policy_chosen = self._gauge(
            "policy_chosen", "1 for the policy that decides where the policy of a tier is auto", "tier", "policy"
        )
        self.write_budget_left_bytes = self._gauge(
            "write_budget_left_bytes", "Bytes that reads may write now of nvme.daily_writes_max; below 0 it is owed"
        )
        self.second_miss_keys = self._gauge("second_miss_keys", "Missed objects that are remembered for a second miss")
        self.damaged = self._counter("damaged", "Cached copies dropped because their bytes were wrong", "tier")
        self.tier_errors = self._counter("tier_errors", "Failed operations of a tier, taken as misses", "tier")
        self.tier_state = self._gauge(
            "tier_state", "Disk of a tier: 0 healthy, 1 suspect, 2 out of use, 3 being probed", "tier"
        )
        self.used_bytes = self._gauge("used_bytes", "Bytes in a tier, fills in flight included", "tier")
        self.capacity_bytes = self._gauge("capacity_bytes", "Most bytes a tier may hold", "tier")
        self.kept_bytes = self._gauge("kept_bytes", "Bytes of checkpoints that the NVMe tier does not evict")
        self.pinned_bytes = self._gauge("pinned_bytes", "Bytes of pinned files that were kept from an eviction")
        self.quota_bytes = self._gauge("quota_bytes", "Bytes in the NVMe tier that count against a quota", "rule")
        self.quota_capacity_bytes = self._gauge(
            "quota_capacity_bytes", "Most bytes that a quota lets the NVMe tier hold", "rule"
        )
        self.pins_over = self._counter(
            "pins_over", "Pinned files that were evicted because nvme.pinned_share_max was used up"
        )
        self.resident = self._gauge("resident", "Versions in a tier", "tier")
        self.fetches_in_flight = self._gauge("fetches_in_flight", "Fetches from origins that run now")

        self.origin_requests = self._counter("origin_requests", "Requests to origins", "op", "outcome")
        self.origin_seconds = Histogram(
            "tiercache_origin_seconds",
            "Duration of requests to origins",
            ["op"],
            registry=self.registry,
            buckets=_REQUEST_SECONDS,
        )
        self.origin_bytes = self._counter("origin_bytes", "Bytes exchanged with origins (read, written)", "direction")
        self.retries = self._counter("retries", "Requests to origins that were repeated", "op")

        self.expected_reads = self._counter(
            "expected_reads", "Files that the disk began to read when they were looked up"
        )
        self.readahead_bytes = self._counter("readahead_bytes", "Bytes read ahead (used, wasted, dropped)", "outcome")
        self.readahead_in_flight_bytes = self._gauge("readahead_in_flight_bytes", "Read-ahead budget in use")

        self.format_files = self._counter(
            "format_files", "Files whose header was looked at (learned, unknown, failed)", "format", "outcome"
        )
        self.format_bytes = self._counter(
            "format_bytes",
            "Bytes read ahead by what a header told (fetched), those read (used)",
            "outcome",
        )
        self.format_extents = self._gauge("format_extents", "Extents of files whose layout is known")

        self.plans = self._gauge("plans", "Plans of readers that are run")
        self.plan_files = self._counter(
            "plan_files", "Planned files (fetched, resident, absent, failed, skipped)", "outcome"
        )
        self.plan_reads = self._counter(
            "plan_reads", "Reads of planned files, by whether they were there (ready, late, missed)", "outcome"
        )
        self.plan_in_flight = self._gauge("plan_in_flight", "Planned files that are being brought")
        self.plan_held_bytes = self._gauge("plan_held_bytes", "Bytes that were brought and not read yet")

        self.scans = self._gauge("scans", "Readers that seem to go through a directory in order")
        self.scan_window_files = self._gauge("scan_window_files", "Most files that are brought ahead of them now")
        self.scan_files = self._counter(
            "scan_files", "Files brought on a guess (fetched, resident, absent, failed, skipped)", "outcome"
        )
        self.scan_reads = self._counter(
            "scan_reads", "Reads of guessed files, by whether they were there (ready, late, missed)", "outcome"
        )

        self.trace_recording = self._gauge("trace_recording", "Whether reads are recorded")
        self.trace_reads = self._counter(
            "trace_reads", "Reads while they are recorded (recorded, left out by the sample, lost)", "outcome"
        )
        self.why_entries = self._gauge("why_entries", "Decisions that `tiercache why` remembers")

        self.pushed_files = self._counter(
            "pushed_files",
            "Planned files for the kernel's page cache (pushed, unknown to the kernel, failed, shed)",
            "outcome",
        )

        self.staged_bytes = self._gauge("staged_bytes", "Bytes in staging that the origin does not have")
        self.staging_capacity_bytes = self._gauge("staging_capacity_bytes", "Budget of staged bytes")
        self.uploads = self._counter("uploads", "Uploads that ended", "outcome")
        self.uploads_in_flight = self._gauge("uploads_in_flight", "Uploads that run now")
        self.upload_bytes = self._counter("upload_bytes", "Bytes uploaded")
        self.upload_bandwidth_max_bytes = self._gauge(
            "upload_bandwidth_max_bytes", "Bytes per second that uploads may have now; 0 = no limit"
        )
        self.upload_paced_seconds = self._counter("upload_paced_seconds", "Time that uploads waited for their rate")
        self.back_pressure = self._counter("back_pressure", "Writes that had to wait for room in staging")
        self.disk_full_waits = self._counter(
            "disk_full_waits", "Writes that waited because the disk of staging was full"
        )
        self.spilled_bytes = self._counter(
            "spilled_bytes", "Bytes that went to origins while their files were written, for want of room in staging"
        )
        self.spills_in_flight = self._gauge("spills_in_flight", "Files that go to origins while they are written")
        self.staged_mapped_files = self._gauge(
            "staged_mapped_files", "Closed files that wait for a program that has them mapped for writing"
        )
        self.journal_commits = self._counter("journal_commits", "Durable commits of the journal")

        self.memory_bytes = self._gauge("memory_bytes", "Bytes of files held in memory, by purpose", "purpose")
        self.memory_budget_bytes = self._gauge("memory_budget_bytes", "Most bytes of files that may be held in memory")
        self.memory_max_bytes = self._gauge("memory_max_bytes", "Ceiling of the engine's own memory")
        self.memory_waits = self._counter("memory_waits", "Requests that waited for memory, by purpose", "purpose")
        self.memory_shed = self._counter("memory_shed", "Work left undone for want of memory, by purpose", "purpose")

        self.mounts = self._gauge("mounts", "Mounts of this engine")
        self.mount_requests = self._counter("mount_requests", "Requests of the kernel, by how they were served", "how")
        self.mount_failures = self._counter(
            "mount_failures", "Failed requests of the kernel, of which the log tells some", "operation", "error"
        )
        self.restarts = self._gauge("restarts", "Engines that were replaced since the first one was started")

    def snapshot(self) -> dict[str, float | dict[str, float]]:
        """Every figure by name without the prefix; with labels, a dictionary from their values joined by ``/``."""
        figures: dict[str, float | dict[str, float]] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                name = sample.name.removeprefix("tiercache_")
                if name.endswith(("_created", "_bucket")):
                    continue
                labels = "/".join(sample.labels.values())
                if not sample.labels:
                    figures[name] = sample.value
                else:
                    by_label = figures.setdefault(name, {})
                    assert isinstance(by_label, dict)
                    by_label[labels] = sample.value
        return figures

    def text(self) -> bytes:
        """The Prometheus text exposition, of type CONTENT_TYPE."""
        return generate_latest(self.registry)

    def serve(self, listen: str) -> Callable[[], None]:
        """Answer ``GET /metrics`` on ``HOST:PORT`` from a thread of its own; returns what ends it.

        ConfigError if the address is taken or not ours.
        """
        host, _, port = listen.rpartition(":")
        try:
            server, thread = start_http_server(int(port), addr=host.strip("[]"), registry=self.registry)
        except OSError as error:
            raise ConfigError(f"metrics.listen: cannot listen on {listen} ({error.strerror or error})") from error

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end

    def _counter(self, name: str, documentation: str, *labels: str) -> Counter:
        return Counter(f"tiercache_{name}", documentation, labels, registry=self.registry)

    def _gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(f"tiercache_{name}", documentation, labels, registry=self.registry)
