"""Sizes and durations as people write them: ``200GiB``, ``80%``, ``500ms``."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

KIB = 1024
MIB = 1024**2
GIB = 1024**3
TIB = 1024**4

SIZE_HELP = "a size such as 64MiB, 200GiB or 1.5TB"
SHARE_HELP = "a size such as 64MiB or 200GiB, or a share such as 80%"
DURATION_HELP = "a duration such as 500ms, 5s, 10m, 2h or inf"

_BYTES = {
    "": 1,
    "b": 1,
    **{prefix: 1024**power for power, prefix in enumerate(("kib", "mib", "gib", "tib", "pib"), 1)},
    **{prefix: 1024**power for power, prefix in enumerate(("ki", "mi", "gi", "ti", "pi"), 1)},
    **{prefix: 1000**power for power, prefix in enumerate(("kb", "mb", "gb", "tb", "pb"), 1)},
    **{prefix: 1024**power for power, prefix in enumerate(("k", "m", "g", "t", "p"), 1)},
}
_SECONDS = {"": 1.0, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\s*(?P<number>\d+(?:_\d+)*(?:\.\d+)?)\s*(?P<unit>[a-zµ%]*)\s*", re.IGNORECASE)
MAX_SIZE_BYTES = 2**62


class Size(NamedTuple):
    """A number of bytes, or a share of a total that is known later."""

    size_bytes: int
    fraction: float = 0.0
    """Above 0 when the size was written as a percentage; then ``size_bytes`` is 0."""

    def resolve(self, total_bytes: int) -> int:
        """The size in bytes, where a share counts against ``total_bytes``."""
        return int(total_bytes * self.fraction) if self.fraction else self.size_bytes

    def __str__(self) -> str:
        """As ``parse_share`` reads it back, exactly."""
        if self.fraction:
            return f"{self.fraction * 100:.12g}%"
        for unit, unit_bytes in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
            if self.size_bytes and self.size_bytes % unit_bytes == 0:
                return f"{self.size_bytes // unit_bytes}{unit}"
        return str(self.size_bytes)


def parse_size(text: str | int) -> int:
    """Bytes of ``200GiB`` and ``200G`` (1024), ``200GB`` (1000) or a bare number; ValueError says what is allowed."""
    if isinstance(text, int) and not isinstance(text, bool):
        size_bytes = text
    else:
        number, unit = _split(text, SIZE_HELP)
        if unit not in _BYTES:
            raise ValueError(f"{text!r} is not a size; allowed: {SIZE_HELP}")
        size_bytes = _scaled(number, _BYTES[unit])
    if not 0 <= size_bytes <= MAX_SIZE_BYTES:
        raise ValueError(f"{text!r} is out of range; allowed: {SIZE_HELP}")
    return size_bytes


def parse_share(text: str | int) -> Size:
    """As :func:`parse_size`, or a percentage above 0 and up to 100."""
    if isinstance(text, str) and text.strip().endswith("%"):
        number, unit = _split(text, SHARE_HELP)
        fraction = float(number) / 100
        if unit != "%" or not 0 < fraction <= 1:
            raise ValueError(f"{text!r} is not a share above 0% and up to 100%; allowed: {SHARE_HELP}")
        return Size(0, fraction)
    try:
        return Size(parse_size(text))
    except ValueError as error:
        raise ValueError(str(error).replace(SIZE_HELP, SHARE_HELP)) from None


def parse_duration(text: str | float) -> float:
    """Seconds of ``500ms``, ``5s``, ``10m``, ``2h``, ``1d``, ``inf`` or a bare number of seconds."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        duration_s = float(text)
    elif isinstance(text, str) and text.strip().lower() in ("inf", "forever", "never"):
        duration_s = math.inf
    else:
        number, unit = _split(text, DURATION_HELP)
        if unit not in _SECONDS:
            raise ValueError(f"{text!r} is not a duration; allowed: {DURATION_HELP}")
        duration_s = float(number) * _SECONDS[unit]
    if math.isnan(duration_s) or duration_s < 0:
        raise ValueError(f"{text!r} is out of range; allowed: {DURATION_HELP}")
    return duration_s


def format_size(size_bytes: float) -> str:
    """``1.5 GiB``: three significant digits, binary units, for people."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1000 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"


def format_count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``, for people; ``noun`` takes an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_duration(duration_s: float) -> str:
    """``850 ms``, ``12.3 s``, ``5 min 20 s``, ``3 h 5 min``, ``2 d 4 h``, for people."""
    if math.isinf(duration_s):
        return "for ever"
    if duration_s < 1:
        return f"{duration_s * 1000:.3g} ms"
    if duration_s < 60:
        return f"{duration_s:.3g} s"
    whole_s = round(duration_s)
    for large, small, large_s, small_s in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole_s >= large_s:
            rest = whole_s % large_s // small_s
            return f"{whole_s // large_s} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole_s} s"


def _split(text: object, allowed: str) -> tuple[str, str]:
    match = _NUMBER.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not understood; allowed: {allowed}")
    return match["number"].replace("_", ""), match["unit"].lower()


def _scaled(number: str, factor: int) -> int:
    """Exact for whole numbers, which a float is not beyond 2**53."""
    return int(number) * factor if number.isdigit() else int(float(number) * factor)
