"""Phases: where the bytes are when they are asked for, and what is done with them."""

from __future__ import annotations

import enum


class Phase(enum.StrEnum):
    """A part of a workload; each has a table of its own."""

    COLD = "cold"
    WARM = "warm"
    DISK_WARM = "disk-warm"
    SAVE = "save"
    DELIVER = "save, until the origin has it"
    LOAD = "load, same node"
    LOAD_FRESH = "load, fresh node"
    LIST_COLD = "list a directory, cold"
    LIST_WARM = "list a directory, warm"
    STAT_COLD = "stat a name, cold"
    STAT_WARM = "stat a name, warm"
    WALK_WARM = "walk the tree and stat each file, warm"
    CREATE = "create, write 4 KiB, close"
    HINTED = "cold epoch, hinted"
    SORTED = "cold epoch, blind, directory order"
    SHUFFLED = "cold epoch, blind, random order"
    AGAIN_HINTED = "second epoch, hinted"
    AGAIN = "second epoch, blind"
    TRAINING = "training"
    SCARCE = "second epoch, little memory, blind"
    SCARCE_HINTED = "second epoch, little memory, hinted"
    RANDOM_EPOCHS = "random epochs"


MEANINGS: dict[Phase, str] = {
    Phase.COLD: "nothing cached; page cache dropped, also the origin's and the local directory's",
    Phase.WARM: "everything was read once before; bytes in memory",
    Phase.DISK_WARM: "everything in the NVMe tier, no RAM tier, page cache dropped: the disk answers",
    Phase.SAVE: "from open to the end of close",
    Phase.DELIVER: "the same, and then until the upload has ended",
    Phase.LOAD: "by the node that saved it",
    Phase.LOAD_FRESH: "by a node that has nothing of it; page cache dropped",
    Phase.LIST_COLD: "nothing known yet",
    Phase.LIST_WARM: "asked before",
    Phase.STAT_COLD: "nothing known yet",
    Phase.STAT_WARM: "asked before",
    Phase.WALK_WARM: "directory by directory; walked once before",
    Phase.CREATE: "new small files, one after the other",
    Phase.HINTED: "nothing cached; the order is random, and told before",
    Phase.SORTED: "nothing cached, nothing told; the files in the order of their names",
    Phase.SHUFFLED: "nothing cached, nothing told; random order",
    Phase.AGAIN_HINTED: "by the node that read all of it once; another random order, told before",
    Phase.AGAIN: "by the node that read all of it once; another random order, nothing told",
    Phase.SCARCE: "everything in the NVMe tier, no RAM tier, and memory for half of the data's pages; read once before",
    Phase.SCARCE_HINTED: "the same, and the order was told before; the local directory has nobody to tell",
    Phase.RANDOM_EPOCHS: "after the cache has filled, by a node whose NVMe tier holds a part of the data",
    Phase.TRAINING: "one epoch: read, decode, forward, backward, step",
}

READING = (Phase.COLD, Phase.WARM, Phase.DISK_WARM)
SAVING = (Phase.SAVE, Phase.DELIVER, Phase.LOAD, Phase.LOAD_FRESH)
NAMING = (Phase.LIST_COLD, Phase.STAT_COLD, Phase.LIST_WARM, Phase.STAT_WARM, Phase.CREATE)

EPOCHS = (Phase.HINTED, Phase.SORTED, Phase.SHUFFLED)
"""The first and the last have a second epoch after them."""

DROPPED = frozenset({Phase.COLD, Phase.DISK_WARM, Phase.LOAD_FRESH})
"""The page cache is empty before these."""

WRITTEN = frozenset({Phase.SAVE, Phase.DELIVER, Phase.CREATE})
"""In these the bytes go the other way."""

OURS_ONLY = frozenset({Phase.DELIVER, Phase.LOAD_FRESH})
"""Peers are left out: not each of them tells when the origin has everything, or keeps files that others could read."""
