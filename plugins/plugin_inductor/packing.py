"""Chooses the library that multiplies by weights: MKL, Inductor's choice for float32, or oneDNN, which it also supports.

Which is faster depends on the processor and the size (`python -m benchmarks.inductor_ways sizes`), so both are timed, once
for each size.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from plugin_inductor.torch_private import mkldnn_fusion

MAX_ROUNDS = 7
MAX_TIMING_S = 0.05
"""Seconds of timing for one size after which no further round begins."""
MIN_RATIO = 1.1
"""How many times as long oneDNN must take for MKL to be chosen: only oneDNN's products fuse the operators that follow them.
With 1.03, Mamba took 1.04 times as long as with oneDNN everywhere."""


@contextlib.contextmanager
def choosing_libraries() -> Generator[None]:
    """Make Inductor pack weights for the faster library, if both are available. Must be used by one thread at a time."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        yield
        return
    device_op_of = mkldnn_fusion._get_mkldnn_device_op  # pyright: ignore[reportPrivateUsage] - no public form

    def choosing(device_type: str) -> Any:
        found = device_op_of(device_type)
        return _Choosing(found) if device_type == "cpu" else found

    with mock.patch.object(mkldnn_fusion, "_get_mkldnn_device_op", choosing):
        yield


class _Choosing:
    """Inductor's packing of weights on the CPU. Inductor uses oneDNN for what it calls low precision."""

    def __init__(self, packing: Any) -> None:
        self._packing = packing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._packing, name)

    def pack_linear_weight(self, graph: fx.Graph, is_lp_weight: bool, transposed: fx.Node, rows: Any) -> fx.Node:
        """Add the node that packs a weight."""
        is_for_onednn = is_lp_weight or _is_for_onednn(transposed, rows)
        return self._packing.pack_linear_weight(graph, is_for_onednn, transposed, rows)

    def pack_linear(
        self, graph: fx.Graph, is_lp_weight: bool, rows: Any, source: fx.Node, packed: fx.Node, bias: fx.Node | None
    ) -> fx.Node:
        """Add the node that multiplies by a packed weight."""
        is_for_onednn = is_lp_weight or packed.target is torch.ops.mkldnn._reorder_linear_weight
        return self._packing.pack_linear(graph, is_for_onednn, rows, source, packed, bias)


def _is_for_onednn(transposed: fx.Node, rows: Any) -> bool:
    """Return whether oneDNN multiplies [rows, inner] by a weight (the node transposes it) in less time than MKL."""
    weight = transposed.args[0]
    assert isinstance(weight, fx.Node)
    inner, columns = weight.meta["val"].shape
    if has_free_symbols((rows, inner, columns)):
        return True  # MKL packs for one fixed number of rows
    return is_onednn_faster(int(rows), int(inner), int(columns), torch.get_num_threads())


@lru_cache(maxsize=1024)
def is_onednn_faster(rows: int, inner: int, columns: int, threads: int) -> bool:  # noqa: ARG001 - part of the cache's key
    """Return whether oneDNN is faster than MKL, or about as fast, for a float32 product with PyTorch's threads."""
    onednn, mkl = calls(rows, inner, columns)
    onednn()
    mkl()
    start = time.perf_counter()
    times = [(seconds(onednn), seconds(mkl))]
    while len(times) < MAX_ROUNDS and time.perf_counter() - start < MAX_TIMING_S:
        times.append((seconds(onednn), seconds(mkl)))
    onednn_s, mkl_s = (min(each) for each in zip(*times, strict=True))
    return onednn_s < MIN_RATIO * mkl_s


def calls(rows: int, inner: int, columns: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return calls of oneDNN and MKL that multiply [rows, inner] by a packed weight, without drawing random numbers."""
    source, weight = torch.full((rows, inner), 0.5), torch.full((columns, inner), 0.25)
    for_onednn = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    for_mkl = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    return (
        lambda: torch.ops.mkldnn._linear_pointwise(source, for_onednn, None, "none", [], ""),
        lambda: torch.ops.mkl._mkl_linear(source, for_mkl, weight, None, rows),
    )


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
