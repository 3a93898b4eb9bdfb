"""Fill once and evict for nobody: the best that a cache without foresight can do for random epochs."""

from __future__ import annotations

from tiercache.policies.base import CacheKey
from tiercache.policies.fifo import Fifo


class Hold(Fifo):
    """Each epoch reads every object once, in a new random order, so every resident object is worth the same.

    Keeping any set of them hits exactly c = capacity / data set; every eviction policy, Belady's included, stays
    below or equal. So nothing is admitted for which there is no room. Evictions are for those who take room from the
    cache itself: bytes that are staged, others on the same disk, a smaller capacity than before.
    """

    name = "hold"

    def admits(self, key: CacheKey, size_bytes: int) -> bool:
        return self._queue.takes(size_bytes - self._queue.sizes.get(key, 0))
