"""Checks of the names in a model's options, which are known only once plugins and operators are."""

from __future__ import annotations

import torch

from hub.config.options import Options, check_backends
from hub.discovery.registry import registry
from hub.errors import OptionError


def check_names(options: Options) -> None:
    """Raise OptionError for a backend or an operator that does not exist."""
    check_backends(options, registry().configured(options).entries)
    for name in options.force:
        if not _is_operator(name):
            raise OptionError(
                f"option 'force' (from {options.origin('force')}): PyTorch has no operator {name}",
                hint="`hub explain MODEL --json` shows the operators of each cluster",
            )


def _is_operator(name: str) -> bool:
    """Return whether PyTorch knows an operator, "aten.softmax", or one of its overloads, "aten.softmax.int".

    Operators of other libraries may be registered later.
    """
    namespace, operator, *overload = name.split(".")
    if namespace not in ("aten", "prims"):
        return True
    found = getattr(getattr(torch.ops, namespace), operator, None)
    return found is not None and (not overload or overload[0] in found.overloads())
