"""Eviction policies: pure objects that the engine, the simulator and the tests share."""
