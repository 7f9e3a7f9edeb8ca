"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `openvino`."""
    return (
        BackendInfo(
            name="openvino",
            factory="plugin_openvino.backend:create",
            summary="OpenVINO on the CPU: ATen lowered to its opset, float32 unless more error is granted",
            requires=("openvino>=2025.4",),
            install="pip install 'compiler-hub[openvino]'",
            devices=("cpu",),
            dtypes=("float32", "int64", "int32", "bool"),
            operators="plugin_openvino.support:OPERATORS",
            dynamic_shapes=True,
            training=False,
            peers={"openvino": "plugin_openvino.peers:whole"},
        ),
    )
