"""The tiers as the configuration wants them, and the figures of what decides in them."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

from tiercache.config import Config, disk_total_bytes
from tiercache.decisions import Decisions
from tiercache.engine.admission import admission_of
from tiercache.globs import path_pattern
from tiercache.metrics import Metrics
from tiercache.model import Tier
from tiercache.policies import Policy, make_policy
from tiercache.policies.admission import Admission, AllOf, SecondMiss, WriteBudget
from tiercache.policies.auto import CANDIDATES, Auto
from tiercache.tier import FileTier, Quota
from tiercache.units import format_size

log = logging.getLogger("tiercache.engine")


def make_tiers(config: Config, root: Path, metrics: Metrics, decisions: Decisions) -> list[FileTier]:
    """NVMe, and RAM if it has a capacity."""
    free_bytes = disk_total_bytes(root) - config.free_space_floor_bytes() - config.staging_capacity_bytes()
    if config.nvme_capacity_bytes() > free_bytes:
        left = format_size(max(0, free_bytes))
        log.warning("nvme.capacity is more than floor and staging leave of the disk of %s: %s", root, left)
    admission = admission_of(config.nvme, time.monotonic())
    _show_admission(admission, metrics)
    quotas = _quotas(config)
    left_bytes = config.nvme_capacity_bytes() - sum(quota.capacity_bytes for quota in quotas)
    tiers = [
        FileTier(
            Tier.NVME,
            root / "nvme",
            capacity_bytes=config.nvme_capacity_bytes(),
            free_space_floor_bytes=config.free_space_floor_bytes(),
            policy=_policy(Tier.NVME, config.nvme.policy, left_bytes, metrics),
            quotas=quotas,
            admission=admission,
            metrics=metrics,
            decisions=decisions,
            max_object_share=config.nvme.max_object_share,
            slow_s=config.nvme.slow_s,
        )
    ]
    if config.ram_capacity_bytes() > 0:
        tiers.append(
            FileTier(
                Tier.RAM,
                config.ram_directory,
                capacity_bytes=config.ram_capacity_bytes(),
                free_space_floor_bytes=0,
                policy=_policy(Tier.RAM, config.ram.policy, config.ram_capacity_bytes(), metrics),
                metrics=metrics,
                decisions=decisions,
                max_object_share=config.nvme.max_object_share,
                slow_s=config.nvme.slow_s,
            )
        )
    return tiers


def _quotas(config: Config) -> list[Quota]:
    quotas = []
    for quota in config.nvme.quotas:
        capacity_bytes = quota.capacity.resolve(config.nvme_capacity_bytes())
        policy = make_policy(config.nvme.policy, capacity_bytes)
        quotas.append(Quota(quota.path, path_pattern(quota.path), capacity_bytes, policy))
    return quotas


def _policy(tier: Tier, name: str, capacity_bytes: int, metrics: Metrics) -> Policy:
    policy = make_policy(name, capacity_bytes)
    if isinstance(policy, Auto):
        for candidate in CANDIDATES:
            show = metrics.policy_chosen.labels(tier=tier.label, policy=candidate).set_function
            show(partial(_is_chosen, policy, candidate))
    return policy


def _is_chosen(policy: Auto, candidate: str) -> float:
    return float(policy.choice == candidate)


def _show_admission(admission: Admission | None, metrics: Metrics) -> None:
    for part in admission.parts if isinstance(admission, AllOf) else ():
        match part:
            case WriteBudget():
                metrics.write_budget_left_bytes.set_function(partial(_left_bytes, part))
            case SecondMiss():
                metrics.second_miss_keys.set_function(part.__len__)
            case _:
                pass


def _left_bytes(budget: WriteBudget) -> float:
    return budget.left_bytes(time.monotonic())
