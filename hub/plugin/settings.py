"""Settings of one backend: its plugin declares them as a class, and users set them where they set the hub's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from hub.config.options import resolve
from hub.config.settings import Setting, folder_of, working_folder
from hub.config.suggest import did_you_mean
from hub.errors import ContractError, OptionError


class BackendSettings(BaseModel):
    """The settings of one backend; frozen. Plugins subclass it, see `BackendInfo.settings`.

    Every field has a default. Values come from `options={"NAME": {...}}`, from variables `HUB_NAME_FIELD`, whose text
    pydantic converts, or from a table `[NAME]` in hub.toml.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    path_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are paths: a relative one in a hub.toml starts at the folder of that file."""
    _cache_folder: Path | None = PrivateAttr(default=None)

    @property
    def cache_folder(self) -> Path:
        """The hub's cache folder under the options that contain these settings; it may not exist yet.

        Tuning results are stored there (`hub.cache.tuning.tuning_folder`, or the store of measurements).
        """
        return self._cache_folder or resolve(None, os.environ, working_folder()).cache.root

    def kept_in(self, cache_folder: Path) -> Self:
        """Return the same settings with another cache folder."""
        found = self.model_copy()
        found._cache_folder = cache_folder
        return found

    @property
    def requires(self) -> tuple[str, ...] | None:
        """The distributions required under these settings; None means those of `BackendInfo.requires`."""
        return None

    @property
    def missing(self) -> str:
        """Missing parts of this machine under these settings, other than distributions, such as a device; "" for none."""
        return ""

    @property
    def state(self) -> str:
        """Anything else that affects compilation under these settings, such as the tuning results so far; "" for nothing.

        It is part of every cache key. It is read often, so it must take a millisecond at most.
        """
        return ""

    @property
    def remark(self) -> str:
        """A remark for users about these settings, shown before they use the backend; "" for none."""
        return ""

    @property
    def reference_on(self) -> tuple[str, ...]:
        """Kinds of devices, such as "cpu", on which the backend runs only for reference under these settings.

        The planner never chooses it there, whatever its cost. It gets nodes on such a device only if the options name no
        other backend, or force operators to it.
        """
        return ()

    @property
    def compile_workers(self) -> int | None:
        """The number of its clusters that may be compiled at once under these settings; None means the hub's setting."""
        return None

    @property
    def max_relative_error(self) -> float | None:
        """The largest relative error under these settings; None means `BackendInfo.max_relative_error`."""
        return None

    @property
    def saturates(self) -> bool | None:
        """Return whether the user accepts clipped values; None means `BackendInfo.saturates`."""
        return None


def _anchored(setting: Setting) -> Any:
    """Return the value of a path, absolute if it is a relative one that was written in a hub.toml."""
    folder = folder_of(setting.origin)
    if folder is None or not isinstance(setting.value, str) or not setting.value:
        return setting.value
    return str(folder / Path(setting.value).expanduser())


def checked_settings(backend: str, kind: type[BackendSettings], given: Mapping[str, Setting]) -> BackendSettings:
    """Return a backend's settings. Raises OptionError, with setting and origin, for an unknown setting or a wrong value.

    Raises ContractError if `kind`, which a plugin's registration names, is no class of settings.
    """
    if not (isinstance(kind, type) and issubclass(kind, BackendSettings)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ContractError(f"{kind!r} is no subclass of BackendSettings", backend=backend)
    for key, setting in given.items():
        if key not in kind.model_fields:
            raise OptionError(
                f"unknown option '{backend}.{key}' (from {setting.origin}){did_you_mean(key, kind.model_fields)}",
                backend=backend,
                hint=f"choose from {', '.join(kind.model_fields) or 'none: it has no settings'}",
            )
    try:
        return kind(
            **{key: _anchored(setting) if key in kind.path_fields else setting.value for key, setting in given.items()}
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else next(iter(given), "")
        setting = given.get(key, Setting(first.get("input"), "default"))
        text = f"option '{backend}.{key}' (from {setting.origin}), {setting.value!r}: {first['msg']}"
        raise OptionError(text, backend=backend, hint=kind.model_fields[key].description) from None
