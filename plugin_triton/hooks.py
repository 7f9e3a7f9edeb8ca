"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `triton`; its settings decide whether the interpreter may replace a GPU."""
    return (
        BackendInfo(
            name="triton",
            factory="plugin_triton.backend:create",
            settings="plugin_triton.settings:Settings",
            summary="readable Triton kernels for GPUs; without one an interpreter, for reference only",
            requires=("triton>=3.6,<3.10",),
            install="pip install 'compiler-hub[triton]'; without a GPU, set HUB_TRITON_INTERPRET=1 to interpret kernels",
            devices=("cuda", "cpu"),
            never_ran_on=("a GPU",),
            dtypes=("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"),
            operators="plugin_triton.support:OPERATORS",
            dynamic_shapes=True,
            training=True,
        ),
    )
