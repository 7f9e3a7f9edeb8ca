"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `tvm`."""
    return (
        BackendInfo(
            name="tvm",
            factory="plugin_tvm.backend:create",
            summary="Apache TVM on the CPU, through Relax: kernels that `hub tune` searches for",
            requires=("apache-tvm>=0.27,<0.28", "apache-tvm-ffi>=0.1.14,<0.1.15", "ml_dtypes>=0.5"),
            install="pip install 'compiler-hub[tvm]'",
            devices=("cpu",),
            dtypes=("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
            operators="plugin_tvm.support:OPERATORS",
            dynamic_shapes=True,
            training=False,
            settings="plugin_tvm.settings:Settings",
        ),
    )
