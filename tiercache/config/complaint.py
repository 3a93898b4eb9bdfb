"""One line for a user out of a validation error: ``source:key: what is wrong; allowed: …``."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


class Layer(NamedTuple):
    """The settings of one source; ``source`` is how a complaint names it."""

    source: str
    settings: Mapping[str, Any]
    prefix: str = ""
    """Not empty where keys are spelled as environment variables."""


_TYPES = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "text in quotes",
    "path": "a path",
    "dict": "a section of keys",
    "model": "a section of keys",
    "tuple": "a list of sections",
    "finite_number": "a finite number",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "greater_than": ("gt", "above"),
    "less_than": ("lt", "below"),
}


def complaint(error: ValidationError, layers: Sequence[Layer], model: type[BaseModel]) -> str:
    """Describe the first of the errors; of its sources the uppermost is to blame. ``layers`` are in rising order."""
    errors = error.errors(include_url=False)
    first = errors[0]
    path = [str(part) for part in first["loc"] if part != "[key]"]
    layer = _blamed(layers, path, whole=first["type"] != "missing")
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{layer.source}:{_spelled(path, layer)}: {_wrong(first, path, model)}{more}"


def _blamed(layers: Sequence[Layer], path: Sequence[str], *, whole: bool) -> Layer:
    for layer in layers[::-1]:
        if _holds(layer.settings, path if whole else path[:-1]):
            return layer
    return Layer("defaults", {})


def _holds(settings: Any, path: Sequence[str]) -> bool:
    for part in path:
        if not isinstance(settings, Mapping):
            # The fault may lie in a value that stands where a section should.
            return True
        if part not in settings:
            return False
        settings = settings[part]
    return True


def _spelled(path: Sequence[str], layer: Layer) -> str:
    return layer.prefix + "__".join(path).upper() if layer.prefix else ".".join(path)


def _wrong(error: ErrorDetails, path: Sequence[str], model: type[BaseModel]) -> str:
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == "extra_forbidden":
        return _unknown(path[-1], _keys_of(model, path[:-1]))
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        allowed = [text.strip(" '") for text in context["expected"].replace(" or ", ", ").split(",")]
        if error["loc"][-1] == "[key]":
            return _unknown(path[-1], allowed)
        return f"{_short(value)} is not known{_meant(value, allowed)}; allowed: {', '.join(allowed)}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{_short(value)} is out of range; allowed: {words} {context[name]:g}"
    if kind == "string_too_short":
        return "is empty; allowed: text in quotes"
    allowed_type = next((text for name, text in _TYPES.items() if kind.startswith(name)), error["msg"])
    return f"{_short(value)} is of the wrong kind; allowed: {allowed_type}"


def _unknown(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return f"unknown key{_meant(name, known)}; allowed: {', '.join(known)}"


def _meant(value: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(value).lower(), list(known), n=1, cutoff=0.6)
    return f", did you mean {close[0]!r}?" if close else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _keys_of(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys that the section at ``path`` allows; a dictionary of sections takes any name for one step,
    a list of them any number."""
    kind: Any = model
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[part].annotation
        else:
            kind = [kind for kind in get_args(kind) if kind is not ...][-1]
        if get_origin(kind) in (Union, types.UnionType):
            kind = get_args(kind)[0]
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
