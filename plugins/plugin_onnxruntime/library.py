"""ONNX Runtime, imported so that it collects nothing.

From 1.31 on it writes what it is used for, with a device's number, to a database in the user's cache folder, and sends
it from a thread of its own. It asks for the variable when it is imported; what the user has set stays.
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
