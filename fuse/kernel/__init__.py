"""The mount without libfuse: the kernel's own protocol on /dev/fuse, spoken in Python."""
