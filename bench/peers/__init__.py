"""Other caching mounts of an object store, to be measured beside ours: one module each."""
