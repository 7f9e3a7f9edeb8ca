"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl
from plugin_inductor.support import DTYPES


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `inductor`."""
    return (
        BackendInfo(
            name="inductor",
            factory="plugin_inductor.backend:create",
            summary="The compiler inside PyTorch: C++ with OpenMP on CPUs, Triton on GPUs.",
            requires=("torch>=2.11,<2.16",),
            install='pip install "torch>=2.11,<2.16"',
            devices=("cpu", "cuda", "xpu"),
            never_ran_on=("a GPU",),
            dtypes=DTYPES,
            dynamic_shapes=True,
            training=True,
            peers={
                "inductor": "plugin_inductor.peers:default",
                "inductor-max-autotune": "plugin_inductor.peers:max_autotune",
                "inductor-exported": "plugin_inductor.peers:exported",
                "aot-inductor": "plugin_inductor.peers:ahead_of_time",
            },
        ),
    )
