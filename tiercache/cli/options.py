"""Options that several commands share, and the configuration that they lead to."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tiercache.cli.failure import WrongUsage
from tiercache.errors import TierCacheError

if TYPE_CHECKING:
    from tiercache.config import Config

CacheDir = Annotated[
    Path | None, typer.Option("--cache-dir", help="Directory of the cache, which has one engine.", metavar="DIR")
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with settings.", metavar="FILE")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, such as nvme.capacity=200GiB.", metavar="KEY=VALUE")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Deadline = Annotated[str, typer.Option("--deadline", help="How long to wait: 60, 90s, 5m, inf.", metavar="TIME")]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", help="dataset, checkpoint, weights, scratch or general.", metavar="NAME"),
]
ClientOption = Annotated[
    str | None, typer.Option("--client", help="What reads the origin: obstore or s3fs.", metavar="NAME")
]
OriginOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An option of the origin, such as endpoint_url=URL.", metavar="KEY=VALUE"),
]


def configuration(cache_dir: Path | None, config: Path | None, settings: list[str] | None, **more: Any) -> Config:
    """File, environment and these options; ``more`` has dotted keys with ``__`` for the dot."""
    from tiercache.config import load_config

    overrides: dict[str, Any] = pairs(settings, "--set")
    overrides |= {name.replace("__", "."): value for name, value in more.items()}
    if cache_dir is not None:
        overrides["cache_dir"] = cache_dir
    return load_config(config, overrides)


def pairs(texts: list[str] | None, option: str) -> dict[str, Any]:
    """``KEY=VALUE`` arguments, else WrongUsage; a value that is a JSON object, list or truth value is taken as that."""
    values: dict[str, Any] = {}
    for text in texts or []:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise WrongUsage(f"{option} {text}: is no setting; allowed: KEY=VALUE")
        values[key] = _value(value)
    return values


def _value(text: str) -> Any:
    if text.startswith(("{", "[")) or text in ("true", "false"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def deadline_s(text: str) -> float:
    """Seconds of a ``--deadline``. WrongUsage."""
    from tiercache.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise WrongUsage(f"--deadline: {error}") from None


def one_of(option: str, word: str, allowed: Collection[str]) -> str:
    """The word itself. WrongUsage with the choices when it is none of them."""
    if word not in allowed:
        raise WrongUsage(f"{option}: {word!r} is not known; allowed: {', '.join(allowed)}")
    return word


def level_word(option: str, word: str) -> str:
    """The word of a level that bytes can reach. WrongUsage for another one, and for one that nothing reaches yet."""
    from tiercache.engine.promises import LEVELS, level_of
    from tiercache.errors import Unsupported

    try:
        level_of(word)
    except Unsupported as error:
        raise WrongUsage(f"{option}: {error}") from None
    except TierCacheError:
        one_of(option, word, LEVELS)
    return word
