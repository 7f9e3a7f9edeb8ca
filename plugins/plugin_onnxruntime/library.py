"""ONNX Runtime, imported so that it collects nothing.

Version 1.31 opens a database of its telemetry in the user's cache folder, beside a number of the device, and runs a thread
for it. It asks for the variable when it is imported; what the user has set stays.
"""

from __future__ import annotations

import os

_SWITCH = "ORT_DISABLE_TELEMETRY"

_is_ours = _SWITCH not in os.environ
if _is_ours:
    os.environ[_SWITCH] = "1"
try:
    import onnxruntime
finally:
    if _is_ours:
        del os.environ[_SWITCH]

__all__ = ["onnxruntime"]
