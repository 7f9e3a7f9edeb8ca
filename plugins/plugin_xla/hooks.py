"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `xla`; its settings name the processor that it compiles for."""
    return (
        BackendInfo(
            name="xla",
            factory="plugin_xla.backend:create",
            settings="plugin_xla.settings:Settings",
            summary="XLA on the CPU, through StableHLO: compiled for each size that is met; CUDA and TPU by a setting",
            requires=("jaxlib>=0.10,<0.11", "jax>=0.10,<0.11", "torch-mlir>=20260801"),
            install="pip install 'compiler-hub[xla]'",
            devices=("cpu", "cuda"),
            never_ran_on=("a GPU", "a TPU"),
            dtypes=("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool"),
            operators="plugin_xla.support:OPERATORS",
            dynamic_shapes=True,
            training=False,
        ),
    )
