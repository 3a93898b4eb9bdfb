"""Arguments of the filesystem: one that nobody knows is refused, so that no misspelt one is passed over."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

from tiercache.config import Config

OF_FSSPEC: Final = frozenset(
    {
        "add_aliases",
        "add_docs",
        "asynchronous",
        "batch_size",
        "listings_expiry_time",
        "loop",
        "max_paths",
        "skip_instance_cache",
        "use_listings_cache",
    }
)
"""What fsspec, and programs on top of it, give to any filesystem. It has no effect here: the profile decides."""


def unknown_argument(name: str, own: Iterable[str], target_protocol: str | None) -> TypeError:
    """What may have been meant, of the filesystem's ``own`` arguments, of the settings, or of the target's."""
    own = sorted(own)
    told = f"tiercache: unknown argument {name!r}"
    if close := difflib.get_close_matches(name, own, n=1):
        return TypeError(f"{told}, did you mean {close[0]!r}?")
    if name.partition(".")[0] in Config.model_fields:
        return TypeError(f"{told}; a setting is given as settings={{{name!r}: …}}")
    return TypeError(
        f"{told}; there are: {', '.join(own)}. What the target needs goes into target_options, or with a chained URL "
        f"into {target_protocol or 's3'}={{{name!r}: …}}"
    )
