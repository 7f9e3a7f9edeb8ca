"""Estimates without measurement: the roofline, max(flops / peak, bytes / bandwidth), plus the overhead of a call."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

from hub.cache.measurements import Measurements
from hub.config.options import resolve
from hub.config.settings import working_folder
from hub.errors import HubError
from hub.partition.group import is_trivial
from hub.plugin.cost import Cost
from hub.plugin.graph import Cluster, Graph, TensorSpec, priced_size
from hub.plugin.table import argument, elements, operator_name, tensors_of, value_of
from hub.pricing.profile import (
    Profile,
    first_peaks,
    measure_accelerator,
    settled_accelerator,
    settled_profile,
    stored_profile,
)
from hub.process.accelerators import is_accelerator

CALL_S = 15e-6
"""Seconds to enter and leave a compiled cluster. Measured on 2 cores: ORT 6 us, OpenVINO 20 to 90 us, Inductor 15 us."""
EAGER_CALL_S = 4e-6
"""Seconds of eager's dispatch for one operator (measured on 2 cores at 2.6 GHz, 2026-11)."""
COMPILED_EFFICIENCY = 0.8
"""Share of the peak that compiled GEMM-bound models reach (FACTS: about 0.9 for the best backend, less for the rest)."""
EAGER_EFFICIENCY = 0.6


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peak rates of this machine with the current number of threads, or of an accelerator."""

    flops_s: float
    bytes_s: float


UNMEASURED = Peaks(19.5e12, 1.555e12)
"""Peaks assumed for an accelerator that cannot be measured. Source: datasheet of NVIDIA's A100 40 GB, float32."""
NARROW = 32.0
"""Factor over its float32 peak that an accelerator may reach in narrower products.

Source: datasheet of NVIDIA's H100 SXM, 1979 Tflop/s in float8 and 67 in float32.
"""


def settle_peaks(kept: Measurements, threads: int) -> Profile:
    """Base all estimates of this process on the peaks in a measurement store, and return their profile."""
    profile = settled_profile(kept, threads)
    _settled[threads] = Peaks(profile.flops_s, profile.bytes_s)
    return profile


def settle_accelerators(kept: Measurements, graph: Graph) -> None:
    """Base all estimates of this process on the stored peaks of a graph's accelerators; measure those that are missing.

    An accelerator that cannot be measured here, for example for lack of memory, gets assumed peaks; the next process
    measures it.
    """
    for device in dict.fromkeys(filter(None, map(device_of, graph.nodes))):
        if _key(device) in _accelerators:
            continue
        try:
            profile = settled_accelerator(kept, device)
            _accelerators[_key(device)] = Peaks(profile.flops_s, profile.bytes_s)
        except Exception:  # noqa: BLE001 - a device may fail in any way, and costs are estimates anyway
            _accelerators[_key(device)] = UNMEASURED


def settle(threads: int, found: Peaks, accelerators: Mapping[str, Peaks]) -> None:
    """Base all estimates of this process on given peaks; a worker uses those of the process that it works for."""
    _settled[threads] = found
    _accelerators.update(accelerators)


def settled_accelerators() -> Mapping[str, Peaks]:
    """Return the accelerators' peaks that estimates of this process are based on, by device."""
    return dict(_accelerators)


def measure_early(root: Path, threads: int) -> None:
    """Measure the peaks, if a cache folder has none, before starting workers that would disturb the measurement."""
    if threads not in _settled and stored_profile(root, threads) is None:
        first_peaks(threads)


_settled: dict[int, Peaks] = {}
_accelerators: dict[str, Peaks] = {}
"""Peaks by `_key`."""


def peaks(threads: int, device: torch.device | None = None) -> Peaks:
    """Return the peaks that planning settled on, else those that `hub doctor` stored, else measure them in about 0.1 s.

    They are the CPU's with this number of threads, or those of the accelerator `device`.
    """
    if device is not None and is_accelerator(device):
        return _accelerators[_key(device)] if _key(device) in _accelerators else _own_accelerator(_key(device))
    return _settled[threads] if threads in _settled else _own_peaks(threads)


def _key(device: torch.device) -> str:
    return f"{device.type}:{device.index or 0}"


@cache
def _own_accelerator(name: str) -> Peaks:
    try:
        return Peaks(*measure_accelerator(torch.device(name)))
    except Exception:  # noqa: BLE001 - as in `settle_accelerators`
        return UNMEASURED


def device_of(node: fx.Node) -> torch.device | None:
    """Return the accelerator that holds a node's result; None for the CPU, and for results without tensors."""
    return _accelerator_among(tensor.device for tensor in elements(value_of(node)) if isinstance(tensor, torch.Tensor))


def _accelerator_among(devices: Iterable[torch.device]) -> torch.device | None:
    return next(filter(is_accelerator, devices), None)


def only_accelerator(graph: Graph) -> torch.device | None:
    """Return the accelerator that computes all of a graph, single numbers left out; None if there is none."""
    found = {device_of(node) for node in graph.nodes if not is_trivial(node) and _is_large(node)}
    return found.pop() if len(found) == 1 else None


def _is_large(node: fx.Node) -> bool:
    return any(isinstance(tensor, torch.Tensor) and _size(tensor) > 1 for tensor in elements(value_of(node)))


def least_seconds(nodes: Iterable[fx.Node], threads: int) -> float:
    """Return a lower bound in seconds for every backend: the nodes' work at the peaks of their devices."""
    return sum(flops(node) / _most_flops_s(threads, device_of(node)) for node in nodes)


def _most_flops_s(threads: int, device: torch.device | None) -> float:
    return peaks(threads, device).flops_s * (1.0 if device is None else NARROW)


@cache
def _own_peaks(threads: int) -> Peaks:
    with contextlib.suppress(HubError):  # an invalid setting is reported where it is used
        root = resolve(None, os.environ, working_folder()).cache.root
        if kept := stored_profile(root, threads):
            return Peaks(kept.flops_s, kept.bytes_s)
    return Peaks(*first_peaks(threads))


def cluster_estimate(
    cluster: Cluster, threads: int, *, efficiency: float = COMPILED_EFFICIENCY, call_s: float = CALL_S
) -> Cost:
    """Estimate one warm call of a compiled cluster: intermediate values stay in caches, the rest goes through memory.

    `efficiency` is the share of the floating-point peak that the compiler reaches on large products, and `call_s` the
    seconds to enter and leave the cluster; plugins pass their own. The roofline is the larger of compute and memory time,
    at the peaks of the device that holds its outputs.
    """
    device = _accelerator_among(spec.device for spec in cluster.outputs)
    found = peaks(threads, device)
    specs = [spec for spec in (*cluster.inputs, *cluster.outputs) if isinstance(spec, TensorSpec)]
    moved = sum(spec.nbytes for spec in specs)
    stored = sum(value.nbytes for value in cluster.constants.values())
    compute_s = sum(map(flops, cluster.nodes)) / (found.flops_s * efficiency)
    memory_s = (moved + stored) / found.bytes_s
    where = f"{threads} threads" if device is None else str(device)
    detail = f"roofline, {found.flops_s / 1e9:.0f} Gflop/s, {found.bytes_s / 1e9:.0f} GB/s, {where}"
    return Cost(max(compute_s, memory_s) + call_s, max(compute_s, memory_s) / 2, moved, "estimated", detail)


def eager_estimate(node: fx.Node, threads: int) -> float:
    """Estimate seconds of one eager operator: every value goes through memory."""
    if is_trivial(node):
        return EAGER_CALL_S / 2
    found = peaks(threads, device_of(node))
    moved = sum(math.prod(map(priced_size, tensor.shape)) * tensor.dtype.itemsize for tensor in tensors_of(node))
    return max(flops(node) / (found.flops_s * EAGER_EFFICIENCY), moved / found.bytes_s) + EAGER_CALL_S


def flops(node: fx.Node) -> float:
    """Count floating-point operations: 2 per multiply-add of products, convolutions and attention, else 1 per element."""
    if node.target is operator.getitem or is_trivial(node):
        return 0.0
    counter = _COUNTERS.get(operator_name(node).rpartition(".")[0])
    if counter is not None:
        return counter(node)
    value = value_of(node)
    return float(math.prod(map(priced_size, value.shape))) if isinstance(value, torch.Tensor) else 0.0


def _size(tensor: Any) -> int:
    return math.prod(map(priced_size, tensor.shape))


def _product(node: fx.Node, left: str) -> float:
    return 2.0 * _size(value_of(node)) * priced_size(value_of(argument(node, left)).shape[-1])


def _convolution(node: fx.Node) -> float:
    """Count one filter-patch product for each element of the result."""
    weight = value_of(argument(node, "weight"))
    return 2.0 * _size(value_of(node)) * math.prod(map(priced_size, weight.shape[1:]))


def _transposed_convolution(node: fx.Node) -> float:
    """Count one multiplication by a filter for each element of the input; weights are [in, out / groups, *kernel]."""
    weight = value_of(argument(node, "weight"))
    return 2.0 * _size(value_of(argument(node, "input"))) * math.prod(map(priced_size, weight.shape[1:]))


def _either_convolution(node: fx.Node) -> float:
    return _transposed_convolution(node) if argument(node, "transposed") else _convolution(node)


def _attention(node: fx.Node) -> float:
    query, key, value = (value_of(argument(node, name)) for name in ("query", "key", "value"))
    rows = _size(query) // priced_size(query.shape[-1])
    return 2.0 * rows * priced_size(key.shape[-2]) * (priced_size(query.shape[-1]) + priced_size(value.shape[-1]))


def _recurrent(node: fx.Node) -> float:
    """Count two operations for each weight at each step of each sequence."""
    steps, *others = (tensor for source in node.all_input_nodes for tensor in elements(value_of(source)))
    weights = sum(_size(tensor) for tensor in others if len(tensor.shape) == 2)
    return 2.0 * weights * _size(steps) / max(priced_size(steps.shape[-1]), 1)


_COUNTERS: Mapping[str, Callable[[fx.Node], float]] = {
    "aten.linear": lambda node: _product(node, "input"),
    "aten.mm": lambda node: _product(node, "self"),
    "aten.bmm": lambda node: _product(node, "self"),
    "aten.matmul": lambda node: _product(node, "self"),
    "aten.addmm": lambda node: _product(node, "mat1"),
    "aten.baddbmm": lambda node: _product(node, "batch1"),
    "aten.conv1d": _convolution,
    "aten.conv2d": _convolution,
    "aten.conv3d": _convolution,
    "aten.convolution": _either_convolution,
    "aten.conv_transpose1d": _transposed_convolution,
    "aten.conv_transpose2d": _transposed_convolution,
    "aten.conv_transpose3d": _transposed_convolution,
    "aten.lstm": _recurrent,
    "aten.gru": _recurrent,
    "aten.rnn_tanh": _recurrent,
    "aten.rnn_relu": _recurrent,
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention": _attention,
    "aten._scaled_dot_product_efficient_attention": _attention,
    "aten._scaled_dot_product_cudnn_attention": _attention,
}
