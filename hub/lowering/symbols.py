"""Where a cluster's symbolic sizes can be read at a call."""

from __future__ import annotations

from typing import Any

from hub.graph import Cluster, TensorSpec
from hub.lowering.sizes import parts_shown, size_of
from hub.support import is_symbolic


def symbol_texts(cluster: Cluster) -> dict[Any, str]:
    """Gives, for each symbolic size that an input shows, the Python text that reads it; inputs are i0, i1, ..."""
    found: dict[Any, str] = {}
    for position, spec in enumerate(cluster.inputs):
        if isinstance(spec, TensorSpec):
            for dim, size in enumerate(spec.shape):
                if is_symbolic(size):
                    found.setdefault(size_of(size), f"i{position}.shape[{dim}]")
        elif spec.kind == "int" and is_symbolic(spec.value):
            found.setdefault(size_of(spec.value), f"i{position}")
    return parts_shown(found)
