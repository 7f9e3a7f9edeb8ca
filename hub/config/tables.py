"""Settings that hold for all models of a machine, each a table of hub.toml. Nothing here imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _as_path(value: Any) -> Any:
    if not isinstance(value, (str, Path)) or not str(value):
        return value
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # "~name" of a user who does not exist
        raise ValueError(str(error)) from error


PathOrNone = Annotated[Path | None, BeforeValidator(_as_path)]
"""Type of a setting that is a path: text is accepted, empty text is not."""


class WorkerSettings(BaseModel):
    """Table `[workers]`: how many worker processes there are, and what each may use; frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    count: Annotated[int, Field(ge=0)] = 0
    """Clusters that are compiled at once, each in a worker process; 0 means one per core."""
    compile_limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 600.0
    """Seconds after which compiling one cluster counts as hanging."""
    memory_limit_gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Gigabytes of memory that one worker may use; None means three quarters of the machine's memory."""
    output_limit_mb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 100.0
    """Megabytes that one worker may print."""


class CacheSettings(BaseModel):
    """Table `[cache]`: where measurements, plans and saved executables are kept, and how many; frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    dir: PathOrNone = None
    """The cache folder as set; None means the user's cache folder (see `root`)."""
    gb: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    """Gigabytes that saved executables and plans may take; the least recently used ones are removed first."""

    @property
    def root(self) -> Path:
        """The cache folder: `dir`, else the platform's cache folder for this user. May not exist yet."""
        if self.dir is not None:
            return self.dir
        import platformdirs  # only the cache needs it

        return platformdirs.user_cache_path("compiler-hub")
