"""OpenVINO's operations, untyped: their signatures are decided when they are called, and their annotations leave them
open."""

from __future__ import annotations

from typing import Any

from openvino import opset16

ops: Any = opset16
