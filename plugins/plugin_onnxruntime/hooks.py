"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `onnxruntime`."""
    return (
        BackendInfo(
            name="onnxruntime",
            factory="plugin_onnxruntime.backend:create",
            summary="ONNX Runtime on the CPU, through its own lowering of ATen to ONNX",
            requires=("onnxruntime>=1.23", "onnx>=1.18"),
            install="pip install 'compiler-hub[onnxruntime]'",
            dtypes=("float32", "float64", "int64", "int32", "bool"),
            operators="plugin_onnxruntime.support:OPERATORS",
            dynamic_shapes=True,
            training=True,
            peers={"onnxruntime": "plugin_onnxruntime.peers:whole"},
        ),
    )
