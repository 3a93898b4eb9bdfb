"""Which process a task belongs to: the kernel tells the thread that asks, which ends sooner."""

from __future__ import annotations


def process_of(task: int) -> int:
    """The process of a thread that is in a call of ours; 0 where that cannot be known (0, another pid namespace)."""
    try:
        with open(f"/proc/{task}/status", "rb") as status:
            for line in status:
                name, _, value = line.partition(b":")
                if name == b"Tgid":
                    return int(value)
    except (OSError, ValueError):
        return 0
    return 0
