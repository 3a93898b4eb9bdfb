"""The tiers that the configuration makes, and what their figures tell."""

from __future__ import annotations

from pathlib import Path

from tiercache.config import Config
from tiercache.decisions import Decisions
from tiercache.engine.tiers import make_tiers
from tiercache.metrics import Metrics
from tiercache.model import VersionId
from tiercache.policies.auto import Auto


def test_the_figures_tell_what_decides_and_what_may_still_be_written(tmp_path: Path) -> None:
    nvme = {"capacity": "1MiB", "free_space_floor": 0, "daily_writes_max": "2400000", "second_miss_s": 1000}
    metrics = Metrics()
    tier, *others = make_tiers(
        Config.model_validate({"cache_dir": tmp_path, "nvme": nvme}), tmp_path, metrics, Decisions(0)
    )
    assert not others
    figures = metrics.snapshot()
    assert figures["policy_chosen"] == {"nvme/patient": 1.0, "nvme/s3fifo": 0.0, "nvme/wtinylfu": 0.0}
    assert figures["write_budget_left_bytes"] == 100_000, "an hour of it"
    assert figures["second_miss_keys"] == 0
    assert tier.reserve(VersionId(b"a" * 16), 4096, object_bytes=4096, name=b"a") is None, "its first miss"
    tier.admission.writes(300_000, tier.clock())
    assert isinstance(tier.policy, Auto)
    tier.policy._choose({"patient": 0.9, "s3fifo": 0.8, "wtinylfu": 0.5})
    figures = metrics.snapshot()
    assert figures["policy_chosen"] == {"nvme/patient": 0.0, "nvme/s3fifo": 0.0, "nvme/wtinylfu": 1.0}
    left = figures["write_budget_left_bytes"]
    assert isinstance(left, float)
    assert left < 0, "it is owed"
    assert figures["second_miss_keys"] == 1
