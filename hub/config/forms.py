"""Names of all settings, and how each is written: in messages, as text, and where it is set.

An option of one model has a plain name ("threads"). A setting for all models is named with its table in hub.toml
("cache.dir").
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hub.errors import OptionError

PREFIX = "HUB_"
"""Beginning of every variable."""
CONFIG_FILE = "hub.toml"
COMMAND_LINE = "the command line"
"""Origin of the settings that are given as flags."""


@dataclass(frozen=True, slots=True)
class _Form:
    """Written form of one setting: for messages, and for reading it from text."""

    wanted: str
    example: str | float | list[str] | dict[str, str]
    parse: Callable[[str], Any] = str
    """Parser for the text of a variable or flag. Raises ValueError."""
    text: str = ""
    """The example as the text of a variable or flag, if that is not how Python prints it."""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        raise ValueError(f"{text!r} names nothing")
    return names


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in _names(text)]
    if bad := [key for key, equals, _ in pairs if not equals]:
        raise ValueError(f"{bad[0]!r} has no '='")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUTH:
        raise ValueError(f"{text!r} is neither true nor false")
    return _TRUTH[word]


def _seconds(text: str) -> float:
    """Read "90", "90s", "10m" or "1.5h"."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS_S else (text, "s")
    return float(number) * _UNITS_S[unit]


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}

_TRUTH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

_FORMS: Mapping[str, _Form] = {
    "backends": _Form("names of backends", ["onnxruntime", "openvino"], _names, "onnxruntime,openvino"),
    "exclude": _Form("names of backends", ["inductor"], _names, "inductor"),
    "force": _Form("a mapping from operators to backends", {"aten.softmax": "eager"}, _pairs, "aten.softmax=eager"),
    "threads": _Form("a whole number from 1 to 1024", 2, int),
    "accuracy": _Form("a number above 0", 0.001, float),
    "strict": _Form("true or false", True, _truth),
    "shadow": _Form("a share of calls from 0 to 1", 0.01, float),
    "cuda_graphs": _Form("true or false", True, _truth),
    "renew": _Form("true or false", True, _truth),
    "tune": _Form('one of "off", "fast" and "full"', "fast"),
    "start": _Form('"eager" or "wait"', "wait"),
    "budget_s": _Form("a number of seconds above 0", 600, _seconds, "10m"),
    "isolate": _Form("true or false", False, _truth),
    "background": _Form("true or false", False, _truth),
    "plan": _Form("the path of a plan file", "plan.json"),
    "debug_dir": _Form("the path of a folder", "hub_debug"),
    "workers.count": _Form("a whole number, 0 for one a core", 4, int),
    "workers.compile_limit_s": _Form("a number of seconds above 0", 120, _seconds, "2m"),
    "workers.memory_limit_gb": _Form("a number of gigabytes above 0", 16, float),
    "workers.output_limit_mb": _Form("a number of megabytes above 0", 100, float),
    "cache.dir": _Form("the path of a folder", "~/.cache/hub"),
    "cache.gb": _Form("a number of gigabytes above 0", 10, float),
}

KEYS: tuple[str, ...] = tuple(_FORMS)
"""Names of all settings: "threads", "cache.dir"."""
OPTIONS: tuple[str, ...] = tuple(key for key in KEYS if "." not in key)
"""Names of the settings that each model may have for itself."""
TABLES: tuple[str, ...] = tuple(dict.fromkeys(key.partition(".")[0] for key in KEYS if "." in key))
"""Names of the tables of settings that hold for all models."""
PATHS = ("plan", "debug_dir", "cache.dir")
"""Settings that are paths; a relative one starts where it was written."""
MOVED: Mapping[str, str] = {
    "compile_workers": "workers.count",
    "compile_limit_s": "workers.compile_limit_s",
    "memory_limit_gb": "workers.memory_limit_gb",
    "output_limit_mb": "workers.output_limit_mb",
    "cache_dir": "cache.dir",
    "cache_gb": "cache.gb",
}
"""Former options of one model, and the setting that each is now."""


def variable_of(key: str) -> str:
    """Return the environment variable of a setting: "HUB_THREADS", and with its table "HUB_CACHE_DIR"."""
    return PREFIX + key.replace(".", "_").upper()


def place_of(key: str) -> str:
    """Return where a table's setting is set: "`dir` in [cache] of hub.toml, or HUB_CACHE_DIR"."""
    table, _, name = key.partition(".")
    return f"`{name}` in [{table}] of hub.toml, or {variable_of(key)}"


def keys_of(table: str) -> tuple[str, ...]:
    """Return the settings of a table, with their full names."""
    return tuple(key for key in KEYS if key.startswith(f"{table}."))


def parse_text(key: str, text: str, origin: str) -> Any:
    """Return the value of a setting written as text ("a,b" for names, "x=a,y=b" for `force`). Raises OptionError."""
    try:
        return _FORMS[key].parse(text)
    except ValueError:
        raise wrong_value(key, text, origin) from None


def wrong_value(key: str, value: Any, origin: str) -> OptionError:
    """Return the error for a value of the wrong type or size."""
    text = f"option {key!r} (from {origin}) must be {_FORMS[key].wanted}, got {value!r}"
    return OptionError(text, hint=f"for example {_example(key, origin)}")


def _example(key: str, origin: str) -> str:
    """Return an example of a setting as it is written at its origin."""
    form, (table, _, name) = _FORMS[key], key.rpartition(".")
    text = form.text or str(form.example).lower()
    if origin.startswith(PREFIX):
        return f"{origin}={text}"
    if origin == COMMAND_LINE:
        return f"--{key.removesuffix('_s').replace('_', '-').replace('.', '-')} {text}"
    if Path(origin).name != CONFIG_FILE:
        return f"{key} = {form.example!r}".replace("'", '"')
    if isinstance(form.example, dict):
        pairs = (f"{json.dumps(one)} = {json.dumps(other)}" for one, other in form.example.items())
        return f"{name} = {{{', '.join(pairs)}}}"
    return f"{name} = {json.dumps(form.example)}" + (f" in [{table}]" if table else "")
