"""What a plugin's description of a backend must be, checked before anything is imported for it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from hub.config.settings import why_not_named
from hub.errors import type_of

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_PATH = re.compile(r"\w+(\.\w+)*:\w+")
_WORD = re.compile(r"[a-z][a-z0-9_]*")


def problems_of(info: Any) -> list[str]:
    """Return what is wrong with a `BackendInfo`, whose fields a plugin may have filled with anything."""
    return [problem for holds, problem in _claims(info) if not holds]


def _claims(info: Any) -> Iterator[tuple[bool, str]]:
    name = info.name
    yield _matches(_NAME, name), f"name {name!r} is not a short lower-case word"
    yield name != "eager", "no backend can be named 'eager': that is PyTorch itself"
    reason = why_not_named(str(name))
    yield not reason, reason
    yield _matches(_PATH, info.factory), f'factory {info.factory!r} has not the form "package.module:callable"'
    yield isinstance(info.summary, str), f"summary is {type_of(info.summary)}, text expected"
    for field in ("operators", "settings"):
        path = getattr(info, field)
        yield not path or _matches(_PATH, path), f'{field} {path!r} has not the form "package.module:NAME"'
    for field in ("devices", "dtypes", "requires"):
        values: Any = getattr(info, field)
        is_tuple = type(values) in (tuple, list, set, frozenset) and all(isinstance(value, str) for value in values)
        yield is_tuple, f"{field} is {values!r}, a tuple of words expected"
        if is_tuple and field != "requires":
            yield bool(values), f"{field} is empty"
        if is_tuple and field == "dtypes":
            for dtype in values:
                yield _matches(_WORD, dtype), f"dtypes names {dtype!r}, which is no word"
    for field in ("dynamic_shapes", "training", "saturates"):
        yield isinstance(getattr(info, field), bool), f"{field} is {getattr(info, field)!r}, True or False expected"
    error = info.max_relative_error
    is_error = isinstance(error, (int, float)) and math.isfinite(error) and error >= 0
    yield is_error, f"max_relative_error is {error!r}, a number of at least 0 expected"
    for peer, place in cast("Mapping[Any, Any]", info.peers).items():
        yield _matches(_PATH, place), f'peer {peer!r} is {place!r}, not "package.module:callable"'


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
