"""OpenVINO's operations. What they take and give is decided when they are called, and their annotations leave it open."""

from __future__ import annotations

from typing import Any

from openvino import opset16

ops: Any = opset16
