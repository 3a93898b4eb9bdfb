"""Tell where a file is, and why it is there or not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from tiercache.cli.status import SILENT
from tiercache.units import format_count, format_duration, format_size

_REFUSALS: Final = {
    "off": "the tier is off",
    "disk out of use": "its disk fails or is slow",
    "too large": "larger than one object may be (nvme.max_object_share)",
    "too large for its quota": "larger than one object may be in its quota (nvme.quotas, nvme.max_object_share)",
    "quota": "its quota is full (nvme.quotas)",
    "policy": "the policy {policy} does not let it in",
    "no room": "all that is there is in use or kept",
    "free space": "the disk is too full (nvme.free_space_floor)",
    "name": "its name is excluded (nvme.include, nvme.exclude)",
    "first miss": "it was missed for the first time (nvme.second_miss_s)",
    "write budget": "the budget of writes is used up (nvme.daily_writes_max)",
    "first hit": "the tier is full, and it was read there for the first time",
}
"""What stands for a word of the engine; other words are told as they are."""

_EVICTIONS: Final = {
    "room": "to make room",
    "free space": "because the disk is full",
    "staged bytes": "to make room for written bytes",
}

_AHEAD: Final = {
    "window": "its reader reads in order",
    "plan": "a plan has it",
    "guess": "what is read shows that it comes next",
}

_HERE: Final = {"all": "all of it is here", "part": "a part of it is here", "": "not here"}


def print_why(file: dict[str, Any]) -> None:
    """One fact a line."""
    console = Console(highlight=False, soft_wrap=True)
    for name, fact in _facts(file):
        console.print(Text(f"{name:<11}{fact}"))


def _facts(file: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "path", file["path"]
    yield "size", format_size(file["size_bytes"])
    yield "version", file["version"] or "none at the origin"
    if file["origin_error"]:
        yield "origin", f"{SILENT}: {file['origin_error']}"
    if file["staged"]:
        yield "staged", f"what was written here is read, and it is {file['staged']}"
    for label, tier in file["tiers"].items():
        yield from _tier(label, tier)
    if file["held_by"]:
        yield "held", f"not evicted now: {', '.join(file['held_by'])}"
    if ahead := file["ahead"]:
        yield "ahead", f"sent for {_at(ahead['at'])} before it was read: {_AHEAD.get(ahead['why'], ahead['why'])}"
    for use in file["planned"]:
        yield "planned", _planned(use)
    if failure := file["failure"]:
        yield "failure", f"{_at(failure['at'])}: {failure['why']}"
    if not _is_known(file):
        yield "engine", _nothing(file["memory"])


def _tier(label: str, tier: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield label, _HERE[tier["here"]]
    if tier.get("quota"):  # an engine of an earlier release does not tell
        yield "", f"counts against the quota of {tier['quota']}"
    admission, leaving = tier["admission"], tier["leaving"]
    if admission and not admission["why"]:
        yield "", f"let in {_at(admission['at'])}"
    elif admission:
        yield "", f"not let in {_at(admission['at'])}: {_refusal(admission['why'], tier)}"
    if leaving:
        yield "", _leaving(leaving)
    shut = tier["shuts_out"]
    if shut and not (admission and admission["why"] == shut):
        yield "", f"not let in now: {_refusal(shut, tier)}"


def _refusal(why: str, tier: dict[str, Any]) -> str:
    return _REFUSALS.get(why, why).format(policy=tier["policy"])


def _leaving(leaving: dict[str, Any]) -> str:
    if not leaving["by"]:
        return f"dropped {_at(leaving['at'])}: {leaving['why']}"
    reason = _EVICTIONS.get(leaving["why"], leaving["why"])
    reason += f" for {leaving['for']}" if leaving.get("for") else ""
    return f"evicted {_at(leaving['at'])} {reason}, chosen by {leaving['by']}"


def _planned(use: dict[str, Any]) -> str:
    state = {"ready": "it is ready", "sent for": "it is on its way"}.get(use["state"], "not sent for yet")
    return f"entry {use['position']} of the plan of {use['reader']}, {use['ahead']} ahead of the reader; {state}"


def _is_known(file: dict[str, Any]) -> bool:
    told = [file["ahead"], file["failure"]]
    told += [tier[topic] for tier in file["tiers"].values() for topic in ("admission", "leaving")]
    return any(told)


def _nothing(memory: dict[str, Any]) -> str:
    """What it means that the engine remembers nothing of a file."""
    if not memory["entries_max"]:
        return "remembers no decisions: why.entries is 0"
    since = f"nothing was decided of it since its start {_at(memory['since'])}"
    if memory["forgot"]:
        since += f", or longer ago than the last {format_count(memory['entries_max'], 'decision')} (why.entries)"
    return since


def _at(at_s: float) -> str:
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    return f"at {clock} ({format_duration(max(0.0, time.time() - at_s))} ago)"
