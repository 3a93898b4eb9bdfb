"""The mount: the filesystem layer (vfs) and the drivers that speak to the kernel."""
