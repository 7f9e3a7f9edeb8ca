"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.backend import BackendInfo
from hub.hookspecs import hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Registers `onnxruntime`."""
    return (BackendInfo(name="onnxruntime", factory="plugin_onnxruntime.backend:create", summary=""),)
