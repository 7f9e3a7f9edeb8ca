"""What a plugin's description of a backend must be, checked before anything else reads it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

from packaging.requirements import InvalidRequirement, Requirement

from hub.config.settings import why_not_named
from hub.errors import type_of

MAX_NAME = 40
"""Longest name of a backend."""
_NAME = re.compile(rf"[a-z][a-z0-9_-]{{0,{MAX_NAME - 1}}}")
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
    yield isinstance(info.install, str), f"install is {info.install!r}, a command expected"
    for field in ("devices", "dtypes", "requires", "never_ran_on"):
        values: Any = getattr(info, field)
        yield _are_words(values), f"{field} is {values!r}, a tuple of words expected"
    for field in ("devices", "dtypes"):
        values = getattr(info, field)
        yield not _are_words(values) or bool(values), f"{field} is empty"
    for dtype in info.dtypes if _are_words(info.dtypes) else ():
        yield _matches(_WORD, dtype), f"dtypes names {dtype!r}, which is no word"
    for text in info.requires if _are_words(info.requires) else ():
        yield _is_requirement(text), f"requires names {text!r}, which is no requirement such as 'numpy>=2'"
    for field in ("dynamic_shapes", "training", "saturates"):
        yield isinstance(getattr(info, field), bool), f"{field} is {getattr(info, field)!r}, True or False expected"
    error = info.max_relative_error
    yield _is_error(error), f"max_relative_error is {error!r}, a number of at least 0 expected"
    yield _is_version(info.api), f"api is {info.api!r}, the two numbers of `hub.plugin.API_VERSION` expected"
    peers = info.peers
    yield isinstance(peers, Mapping), f"peers is {type_of(peers)}, a mapping expected"
    for peer, place in cast("Mapping[Any, Any]", peers).items() if isinstance(peers, Mapping) else ():
        yield _matches(_PATH, place), f'peer {peer!r} is {place!r}, not "package.module:callable"'


def problems_of_settings(settings: Any) -> list[str]:
    """Return what is wrong with the properties of a `BackendSettings`. Raise what a property raises."""
    return [problem for holds, problem in _claims_of_settings(settings) if not holds]


def _claims_of_settings(settings: Any) -> Iterator[tuple[bool, str]]:
    for field in ("missing", "state", "remark"):
        value = getattr(settings, field)
        yield isinstance(value, str), f"{field} is {type_of(value)}, text expected"
    yield _are_words(settings.reference_on), f"reference_on is {settings.reference_on!r}, a tuple of words expected"
    workers = settings.compile_workers
    yield workers is None or (type(workers) is int and workers > 0), f"compile_workers is {workers!r}, at least 1 expected"


def _are_words(values: Any) -> bool:
    return type(values) in (tuple, list, set, frozenset) and all(isinstance(value, str) for value in values)


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return True


def _is_error(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max


def _is_version(value: Any) -> bool:
    return isinstance(value, tuple) and [type(part) for part in cast("tuple[Any, ...]", value)] == [int, int]


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
