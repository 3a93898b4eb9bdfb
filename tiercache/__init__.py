"""A tiered caching filesystem layer for training data and checkpoints."""

__version__ = "0.1.0"
