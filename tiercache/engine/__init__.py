"""The engine: one process per cache directory that composes catalog, tiers, staging and origins."""
