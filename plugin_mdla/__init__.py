"""Micron's deep-learning accelerator (MDLA) as a backend, on the board or in bit-exact software; torchMDLA's interface."""

from __future__ import annotations

__all__ = ["disable", "enable"]


def enable(debug: str = "", options: str = "", clusters: int = 1) -> None:
    """Run operators that the accelerator takes on it, in models compiled from now on by `torch.compile(backend="mdla")`.

    `debug` and `options` are words as for the device's flags ("name=value", separated by spaces); `clusters` is the number
    of its compute clusters to use. Groups appear in the graph as `mdla::CompilationGroup`. Raise OptionError for a wrong
    value.
    """
    from plugin_mdla.face import turn_on  # the hooks must not import torch

    turn_on(debug, options, clusters)


def disable() -> None:
    """Undo `enable`: models compiled with the backend "mdla" afterwards run in eager."""
    from plugin_mdla.face import turn_off  # as above

    turn_off()
