"""ONNX Runtime, imported with its telemetry disabled.

Version 1.31 opens a telemetry database in the user's cache folder, next to a device identifier, and runs a thread for it.
It reads the variable when it is imported; a value that the user has set is kept.
"""

from __future__ import annotations

import os
from typing import Any

from hub.plugin import seen_by_libraries

_SWITCH = "ORT_DISABLE_TELEMETRY"

with seen_by_libraries({_SWITCH: os.environ.get(_SWITCH, "1")}):
    import onnxruntime as untyped

onnxruntime: Any = untyped
"""The package, whose own annotations leave most types open."""

__all__ = ["onnxruntime"]
