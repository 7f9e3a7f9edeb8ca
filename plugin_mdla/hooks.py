"""Registers the backend. Imports nothing heavy."""

from __future__ import annotations

from hub.plugin import BackendInfo, hookimpl

INSTALL = (
    "pip install 'compiler-hub[mdla]', then install Micron's SDK and set HUB_MDLA_LIBRARY, or set HUB_MDLA_SIMULATOR=1"
)


@hookimpl
def hub_backends() -> tuple[BackendInfo, ...]:
    """Register `mdla`; its settings state what it needs and how exact it is."""
    return (
        BackendInfo(
            name="mdla",
            factory="plugin_mdla.backend:create",
            settings="plugin_mdla.settings:Settings",
            summary="Micron's deep-learning accelerator in fixed point: the board, or a bit-exact software device",
            requires=("onnx>=1.18",),
            never_ran_on=("Micron's board",),
            install=INSTALL,
            operators="plugin_mdla.support:OPERATORS",
        ),
    )
