"""Globs over paths, as the configuration has them."""

from __future__ import annotations

import re


def path_pattern(path: str) -> re.Pattern[bytes]:
    """Matches a key with a slash before it.

    A glob that begins with a slash begins at the top, another anywhere; one that ends with a slash means all that is
    below. ``*`` and ``?`` stay within one name, ``**`` stands for any number of directories.
    """
    below = path.endswith(("/", "/**"))
    parts = [part for part in path.strip("/").removesuffix("/**").split("/") if part]
    start = "" if path.startswith("/") else "(?:/[^/]+)*"
    text = start + "".join(map(_part, parts)) + ("(?:/[^/]+)+" if below else "")
    return re.compile(text.encode("utf-8", "surrogateescape"), re.DOTALL)


def _part(part: str) -> str:
    """One component with the slash before it."""
    if part == "**":
        return "(?:/[^/]+)*"
    return "/" + "".join({"*": "[^/]*", "?": "[^/]"}.get(letter) or re.escape(letter) for letter in part)
