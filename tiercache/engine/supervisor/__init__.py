"""The small process above an engine: keeps the descriptors of its mounts and replaces the engine when it crashes.

It imports little and has no thread and no event loop, so that what ends an engine (memory, a bug, a signal) does not
end it too. What it is told by the engine it keeps in memory only: descriptions of mounts hold secrets.
"""
