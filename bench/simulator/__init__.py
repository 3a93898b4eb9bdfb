"""What the eviction policies make of a trace of reads: the objects that the engine runs, without disks."""
