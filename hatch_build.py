"""Builds the hub's C extension next to its source. It is omitted without a C compiler or on an unsupported Python.

Then `hub.compile` runs every call through Dynamo, and reports it.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("hub/frontend/direct/native.c")


def build(root: Path) -> Path | None:
    """Compile the module, and return its path from `root`; None, with a line on standard error, if that fails."""
    target = SOURCE.with_name(SOURCE.stem + sysconfig.get_config_var("EXT_SUFFIX"))
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    headers = sysconfig.get_paths()["include"]
    command = [compiler, "-O2", "-shared", "-fPIC", f"-I{headers}", str(SOURCE), "-o", str(target)]
    try:
        subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"hub: {SOURCE} is not built: {getattr(error, 'stderr', '') or error}\n")
        return None
    return target


class NativeHook(BuildHookInterface[Any]):
    """The hook that hatchling calls before it builds a wheel, or links a checkout into an environment."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        """Build the module, and tag a wheel that contains it for this Python and machine."""
        if self.target_name == "wheel" and (target := build(Path(self.root))) is not None:
            build_data["artifacts"].append(f"/{target}")
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


if __name__ == "__main__":
    sys.exit(build(Path(__file__).parent) is None)
