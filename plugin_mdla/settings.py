"""The user's settings for the accelerator: in options, `HUB_MDLA_*` variables or hub.toml. Imports nothing heavy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, Field

from hub.plugin import BackendSettings, checked_settings, resolve

LIBRARY = "libmicrondla.so"
Format = Literal["auto", "varfp", "q8.8", "int8"]
FORMATS: tuple[str, ...] = get_args(Format)
_LOADER_FOLDERS = ("/usr/local/lib", "/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/lib/x86_64-linux-gnu")
_ERRORS: Mapping[str, float] = {"auto": 0.01, "varfp": 0.05, "q8.8": 0.12, "int8": 0.15}
"""Largest max|error| / max|reference| by format. The SDK's convolution gives 0.02, 0.2, 8 to 11 and 2.6 % here
(`tests/plugin_mdla/test_accuracy.py`); the limits leave a margin for deep nets, where errors of layers add up."""


def pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Parse "name=value name=value". Raise ValueError for anything else."""
    found = [word.partition("=") for word in text.replace(",", " ").split()]
    if bad := [name for name, equals, _ in found if not equals or not name]:
        raise ValueError(f"{bad[0]!r} is not of the form name=value")
    return tuple((name, value) for name, _, value in found)


def _as_pairs(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple((str(name), str(item)) for name, item in cast("Mapping[Any, Any]", value).items())
    return pairs(value) if isinstance(value, str) else value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


_Flags = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_as_pairs)]


class Settings(BackendSettings):
    """The settings of the MDLA backend."""

    path_fields = ("library", "calibration")
    device: Annotated[Literal["board", "simulator"], BeforeValidator(_lower)] = "board"
    """"simulator" is the software device; it needs no board."""
    simulator: bool = False
    """True has the same effect as device "simulator": `HUB_MDLA_SIMULATOR=1`."""
    library: str = ""
    """The path of `libmicrondla.so`; empty means the loader's search path."""
    format: Annotated[Format, BeforeValidator(_lower)] = "auto"
    """"auto": each tensor in its own QX.Y, from calibration; "varfp": only weights, activations Q8.8; "q8.8"; "int8"."""
    calibration: str = ""
    """The calibration file of the model; empty takes ranges from the first call."""
    saturate: bool = False
    """True accepts calls with values that saturate; False runs these calls in eager."""
    boards: Annotated[int, Field(ge=1)] = 1
    clusters: Annotated[int, Field(ge=1)] = 1
    first_cluster: Annotated[int, Field(ge=0)] = 0
    flags: _Flags = ()
    """Further flags for `ie_setflag`, in order."""
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Seconds after which a board that does not answer counts as hung."""

    @property
    def is_simulated(self) -> bool:
        """Return whether the software device is used instead of a board."""
        return self.simulator or self.device == "simulator"

    @property
    def max_relative_error(self) -> float:
        """The largest expected max|error| / max|reference|."""
        return _ERRORS[self.format]

    @property
    def saturates(self) -> bool:
        """Return whether results that the device clips are accepted."""
        return self.saturate

    @property
    def missing(self) -> str:
        """The reason if there is no device, so that no plan includes programs that cannot run; else ""."""
        return "" if self.is_simulated or library_path(self) else f"Micron's SDK ({LIBRARY}) is not installed"

    @property
    def bits(self) -> int:
        """Number of bits of one number."""
        return 8 if self.format == "int8" else 16

    @property
    def value_bytes(self) -> int:
        """Number of bytes of one number."""
        return self.bits // 8


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from variables and hub.toml. Raise OptionError, with the source, for a wrong name or value."""
    chosen = resolve(None, os.environ if environ is None else environ, Path.cwd())
    return cast("Settings", checked_settings("mdla", Settings, chosen.own_of("mdla")))


def library_path(settings: Settings) -> str:
    """Return the path of the SDK's library, as set or found where the loader looks, without loading it; "" if not found."""
    if settings.library:
        return settings.library
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *_LOADER_FOLDERS]
    found = (Path(folder) / LIBRARY for folder in folders)
    return next((str(path) for path in found if path.is_file()), "")
