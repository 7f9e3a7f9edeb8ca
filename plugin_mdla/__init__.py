"""Micron's deep-learning accelerator (MDLA) as a backend, on the board or in bit-exact software; and torchMDLA's face."""

from __future__ import annotations

__all__ = ["disable", "enable"]


def enable(debug: str = "", options: str = "", clusters: int = 1) -> None:
    """Send what the accelerator takes to it, in models that `torch.compile(model, backend="mdla")` compiles from now on.

    `debug` and `options` are words as for the device's flags ("name=value", separated by spaces); `clusters` is how many of
    its compute clusters to use. The groups stand in the graph as `mdla::CompilationGroup`. Raises OptionError.
    """
    from plugin_mdla.face import turn_on  # torch must not come with the hooks

    turn_on(debug, options, clusters)


def disable() -> None:
    """End what `enable` began: models compiled with the backend "mdla" afterwards run as they are."""
    from plugin_mdla.face import turn_off  # as above

    turn_off()
