"""Settings of one backend: its plugin declares them as a class, and users set them where they set the hub's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from hub.config.options import resolve
from hub.config.settings import Setting
from hub.config.suggest import did_you_mean
from hub.errors import OptionError


class BackendSettings(BaseModel):
    """What a user can set of one backend; frozen. Plugins subclass it, see `BackendInfo.settings`.

    Fields have defaults. Their values come from `options={"NAME": {...}}`, from variables `HUB_NAME_FIELD`, whose text
    pydantic converts, or from a table `[NAME]` in hub.toml.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    _cache_folder: Path | None = PrivateAttr(default=None)

    @property
    def cache_folder(self) -> Path:
        """The hub's cache folder under the options that these settings stand in; it may not exist yet.

        What tuning finds goes there (`hub.cache.tuning.tuning_folder`, or the store of measurements).
        """
        return self._cache_folder or resolve(None, os.environ, Path.cwd()).cache_root

    def kept_in(self, cache_folder: Path) -> Self:
        """Return the same settings beside another cache folder."""
        found = self.model_copy()
        found._cache_folder = cache_folder
        return found

    @property
    def requires(self) -> tuple[str, ...] | None:
        """What has to be installed under these settings; None means what `BackendInfo.requires` says."""
        return None

    @property
    def missing(self) -> str:
        """What this machine lacks, under these settings, beside distributions: a device, say; "" for nothing."""
        return ""

    @property
    def state(self) -> str:
        """What else decides what is compiled under these settings: what tuning has found by now, say; "" for nothing.

        Part of every cache key. Asked often, so it takes a millisecond at most.
        """
        return ""

    @property
    def remark(self) -> str:
        """What users should know before they buy, under these settings; "" for nothing."""
        return ""

    @property
    def reference_on(self) -> tuple[str, ...]:
        """Kinds of devices on which it runs for reference only under these settings: "cpu", say.

        Nobody buys it there, whatever it costs: it gets what is there only where options name no other backend, or force
        operators to it.
        """
        return ()

    @property
    def compile_workers(self) -> int | None:
        """How many of its clusters may be compiled at once under these settings; None means what the hub's option says."""
        return None

    @property
    def error_class(self) -> float | None:
        """How far off results may be under these settings; None means what `BackendInfo.error_class` says."""
        return None

    @property
    def saturates(self) -> bool | None:
        """Return whether the user accepts what is cut off; None means what `BackendInfo.saturates` says."""
        return None


def checked_settings(backend: str, kind: type[BackendSettings], given: Mapping[str, Setting]) -> BackendSettings:
    """Return a backend's settings. Raises OptionError, naming setting and origin, for an unknown one or a wrong value."""
    for key, setting in given.items():
        if key not in kind.model_fields:
            raise OptionError(
                f"unknown option '{backend}.{key}' (from {setting.origin}){did_you_mean(key, kind.model_fields)}",
                backend=backend,
                hint=f"choose from {', '.join(kind.model_fields) or 'none: it has no settings'}",
            )
    try:
        return kind(**{key: setting.value for key, setting in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else next(iter(given), "")
        setting = given.get(key, Setting(first.get("input"), "default"))
        text = f"option '{backend}.{key}' (from {setting.origin}), {setting.value!r}: {first['msg']}"
        raise OptionError(text, backend=backend, hint=kind.model_fields[key].description) from None
