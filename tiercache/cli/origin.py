"""The origin that a command line names: a URL, a local directory, or a name in the configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from tiercache.cli.options import one_of, pairs

if TYPE_CHECKING:
    from tiercache.config import Config

NAMED = "tiercache://"
CLIENTS = ("obstore", "s3fs")


class OriginChoice(NamedTuple):
    """What the engine needs to open it. Empty texts: the engine's default."""

    url: str
    client: str
    options: dict[str, Any]
    profile: str


def choose_origin(
    config: Config, url: str, *, client: str | None, options: list[str] | None, profile: str | None
) -> OriginChoice:
    """Options of the command line above those of the configuration, above the caller's AWS variables. WrongUsage."""
    from tiercache.config import PROFILES
    from tiercache.config.aws import with_aws_environment

    if profile is not None:
        one_of("--profile", profile, PROFILES)
    if client is not None:
        one_of("--client", client, CLIENTS)
    choice = OriginChoice(url, client or "", pairs(options, "--option"), profile or "")
    if url.startswith(NAMED):
        choice = _named(config, choice)
    elif "://" not in url:
        # The engine has another working directory.
        choice = choice._replace(url=os.path.abspath(os.path.expanduser(url)))
    else:
        choice = _as_configured(config, choice)
    return choice._replace(options=with_aws_environment(choice.url, choice.options))


def _named(config: Config, choice: OriginChoice) -> OriginChoice:
    """ConfigError for a name that the configuration of this command does not have, whatever the engine once read."""
    from tiercache.errors import ConfigError

    name, _, rest = choice.url.removeprefix(NAMED).partition("/")
    origin = config.origins.get(name)
    if origin is None:
        known = ", ".join(sorted(config.origins)) or "none"
        raise ConfigError(f"{choice.url}: no origin named {name!r} in the configuration; there are: {known}")
    url = f"{origin.url.rstrip('/')}/{rest}" if rest else origin.url
    return OriginChoice(
        url,
        choice.client or origin.client,
        {**origin.options, **choice.options},
        choice.profile or origin.profile,
    )


def _as_configured(config: Config, choice: OriginChoice) -> OriginChoice:
    """A URL inside a configured origin is opened as that says, also without its name."""
    for name, origin in config.origins.items():
        prefix = origin.url.rstrip("/")
        if choice.url == prefix or choice.url.startswith(prefix + "/"):
            rest = choice.url.removeprefix(prefix).lstrip("/")
            return _named(config, choice._replace(url=f"{NAMED}{name}/{rest}"))
    return choice
