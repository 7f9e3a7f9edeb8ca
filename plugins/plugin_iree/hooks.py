"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `iree`; its settings name the processor that it compiles for."""
    return (
        BackendInfo(
            name="iree",
            factory="plugin_iree.backend:create",
            settings="plugin_iree.settings:Settings",
            summary="IREE on the CPU, through torch-mlir: one program for all sizes; CUDA and Vulkan by a setting",
            requires=("iree-base-runtime>=3.13,<3.14", "iree-base-compiler>=3.13,<3.14", "torch-mlir>=20260801"),
            install="pip install 'compiler-hub[iree]'",
            devices=("cpu",),
            never_ran_on=("a GPU",),
            dtypes=("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"),
            operators="plugin_iree.support:OPERATORS",
            dynamic_shapes=True,
            training=False,
        ),
    )
