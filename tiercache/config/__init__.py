"""Settings from file, environment and options, checked, with one clear line for what is wrong."""

from tiercache.config.limits import disk_total_bytes, memory_limit_bytes
from tiercache.config.profiles import NO_REPLICAS, PROFILES, Ack, Profile, ProfileName
from tiercache.config.schema import (
    CatalogConfig,
    CheckpointsConfig,
    ClientName,
    Config,
    EngineConfig,
    EngineMode,
    FetchConfig,
    MetricsConfig,
    NvmeConfig,
    OriginConfig,
    PlanConfig,
    RamConfig,
    ReadaheadConfig,
    RuleConfig,
    StagingConfig,
    UploadConfig,
)
from tiercache.config.sources import load_config
from tiercache.errors import ConfigError
from tiercache.units import Size

__all__ = [
    "NO_REPLICAS",
    "PROFILES",
    "Ack",
    "CatalogConfig",
    "CheckpointsConfig",
    "ClientName",
    "Config",
    "ConfigError",
    "EngineConfig",
    "EngineMode",
    "FetchConfig",
    "MetricsConfig",
    "NvmeConfig",
    "OriginConfig",
    "PlanConfig",
    "Profile",
    "ProfileName",
    "RamConfig",
    "ReadaheadConfig",
    "RuleConfig",
    "Size",
    "StagingConfig",
    "UploadConfig",
    "disk_total_bytes",
    "load_config",
    "memory_limit_bytes",
]
