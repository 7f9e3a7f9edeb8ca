"""Registration of the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `disc`; its settings choose the precision and the compiler."""
    return (
        BackendInfo(
            name="disc",
            factory="plugin_disc.backend:create",
            settings="plugin_disc.settings:Settings",
            summary="a native compiler that fuses memory-bound operators into vectorised loops",
            requires=("torch-mlir>=20260801",),
            install="pip install 'compiler-hub[disc]'",
            dtypes=("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
            operators="plugin_disc.support:OPERATORS",
            dynamic_shapes=True,
            training=True,
        ),
    )
