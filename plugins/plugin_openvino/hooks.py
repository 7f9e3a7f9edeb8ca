"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.backend import BackendInfo
from hub.hookspecs import hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Registers `openvino`."""
    return (BackendInfo(name="openvino", factory="plugin_openvino.backend:create", summary=""),)
