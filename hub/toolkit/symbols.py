"""Where a cluster's symbolic sizes can be read at a call."""

from __future__ import annotations

from typing import Any

from hub.plugin.graph import Cluster, ScalarSpec, TensorSpec
from hub.plugin.table import is_symbolic
from hub.toolkit.layout import is_packed, is_shown
from hub.toolkit.sizes import is_static, parts_shown, size_of


def symbol_texts(cluster: Cluster, *, with_strides: bool = False) -> dict[Any, str]:
    """Return, for each symbolic size that an input shows, the Python text that reads it; inputs are i0, i1, ...

    With strides, those of inputs with gaps that no size shows are read too: for a slice, the sizes before slicing.
    """
    found: dict[Any, str] = {}
    for position, spec in enumerate(cluster.inputs):
        if isinstance(spec, TensorSpec):
            for dim, size in enumerate(spec.shape):
                if is_symbolic(size) and not is_static(size_of(size)):
                    found.setdefault(size_of(size), f"i{position}.shape[{dim}]")
        elif spec.kind == "int" and is_symbolic(spec.value) and not is_static(size_of(spec.value)):
            found.setdefault(size_of(spec.value), f"i{position}")
    if with_strides:
        shown = parts_shown(found)
        for position, spec in enumerate(cluster.inputs):
            strides = () if isinstance(spec, ScalarSpec) or is_packed(spec) else spec.stride
            for dim, stride in enumerate(strides):
                if is_symbolic(stride) and not is_shown(size_of(stride), shown):
                    found.setdefault(size_of(stride), f"i{position}.stride({dim})")
    return parts_shown(found)
