"""ONNX Runtime, imported so that it collects nothing.

Version 1.31 opens a database of its telemetry in the user's cache folder, beside a number of the device, and runs a thread
for it. It asks for the variable when it is imported; what the user has set stays.
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
