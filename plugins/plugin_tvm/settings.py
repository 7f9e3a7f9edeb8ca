"""Settings of TVM for users."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hub.plugin import BackendSettings, tuning_folder
from plugin_tvm.database import state_of


class Settings(BackendSettings):
    """Settings of the backend `tvm`."""

    path_fields = ("database",)
    target: Literal["cpu", "cuda"] = Field(default="cpu", description='"cpu" or "cuda"')
    database: Path | None = Field(
        default=None, description="a folder; without it tuned kernels are kept in the hub's cache"
    )

    @property
    def folder(self) -> Path:
        """The database's folder, which may not exist."""
        if self.database is not None:
            return self.database
        return tuning_folder(self.cache_folder, "tvm")

    @property
    def state(self) -> str:
        """Digest of the database's contents, which affect compilation: kernels use the schedules that tuning found."""
        return state_of(self.folder)

    @property
    def missing(self) -> str:
        """Parts of the target that this machine lacks; "" for none."""
        if self.target == "cuda":
            return "a CUDA compiler in the wheel of TVM 0.27, which has CUDA's runtime and no code generator for it"
        return ""
