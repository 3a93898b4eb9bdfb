"""The benchmark: cached against uncached, in one run."""
