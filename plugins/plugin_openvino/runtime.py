"""Runs a compiled model with zero-copy inputs and outputs, from any number of threads."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import torch

from hub.plugin import (
    Cluster,
    Executable,
    InputRefused,
    RunError,
    ScalarSpec,
    TensorSpec,
    empty_cpu,
    operator_name,
    value_of,
)
from hub.toolkit.sizes import strides_of
from plugin_openvino.lower import SCALAR_DTYPES
from plugin_openvino.operands import INT32_MAX, NUMPY_TYPES
from plugin_openvino.sizes import output_shapes
from plugin_openvino.support import INFINITY_BLIND, LOWEST_BLIND, NAN_BLIND

BLOB = "compiled.blob"
META = "openvino.json"
_strides_of = lru_cache(maxsize=1024)(strides_of)
_POINTERS_KEPT = 16
"""Number of views kept for each input and output: callers' buffers and the allocator's free list rarely rotate wider."""


class Memory:
    """An array interface over memory that it does not own; NumPy and OpenVINO read and write elements at that address."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, shape: tuple[int, ...], typestr: str) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": shape, "typestr": typestr}


class Views:
    """OpenVINO tensors over foreign memory, by address and shape, so that a known buffer costs one lookup.

    They own nothing: each is used only while the caller holds the memory, that is, during one call.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._typestr = np.dtype(NUMPY_TYPES[dtype]).str
        self._known: dict[tuple[int, tuple[int, ...]], tuple[ov.Tensor, Any]] = {}

    def over(self, address: int, shape: tuple[int, ...]) -> tuple[ov.Tensor, Any]:
        """Return an OpenVINO tensor and a NumPy array over the memory."""
        found = self._known.get((address, shape))
        if found is None:
            if len(self._known) >= _POINTERS_KEPT:
                self._known.clear()
            array = np.asarray(Memory(address, shape, self._typestr))
            found = self._known[address, shape] = (ov.Tensor(array, shared_memory=True), array)
        return found


class TensorFeed:
    """Binding of one tensor input to an infer request."""

    def __init__(self, index: int, position: int, name: str, spec: TensorSpec, reader: str | None) -> None:
        self.position = position
        self._index, self._name, self._dtype = index, name, spec.dtype
        self._reader = reader
        """Name of the first node that reads the input, for a refusal of its values."""
        self._shape = tuple(size if isinstance(size, int) else None for size in spec.shape)
        self._is_static = None not in self._shape
        self._checks_range = spec.dtype is torch.int64
        self.is_float = spec.dtype.is_floating_point
        self._views = Views(spec.dtype)
        self._bound: Any = None

    def bind(self, request: Any, value: torch.Tensor) -> torch.Tensor:
        """Bind the value's own memory, or that of a contiguous copy; return the tensor to keep alive during the call."""
        shape = tuple(value.shape)
        if value.dtype is not self._dtype or (shape != self._shape and not self._fits(shape)):
            raise RunError(
                f"input {self._name}: got {value.dtype} {list(shape)}, compiled for {self._dtype} {list(self._shape)}"
            )
        if not value.is_contiguous() or value.is_neg() or value.device.type != "cpu":
            value = value.cpu().resolve_neg().contiguous()
        view, array = self._views.over(value.data_ptr(), shape)
        if self._checks_range:
            self._check_range(array)
        if view is not self._bound:
            request.set_input_tensor(self._index, view)
            self._bound = view
        return value

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return (
            not self._is_static
            and len(shape) == len(self._shape)
            and all(wanted is None or size == wanted for size, wanted in zip(shape, self._shape, strict=True))
        )

    def _check_range(self, array: Any) -> None:
        """Raise InputRefused for integers beyond int32, as which OpenVINO computes int64."""
        if array.size and (array.max() > INT32_MAX or array.min() < -INT32_MAX):
            reason = f"input {self._name} holds an int64 beyond the int32 range in which OpenVINO computes"
            raise InputRefused(reason, node=self._reader)


class NumberFeed:
    """Binding of one number to an infer request, through memory of its own that is bound once."""

    def __init__(self, index: int, position: int, name: str, spec: ScalarSpec) -> None:
        self.position = position
        self._index, self._name = index, name
        self.is_float = False
        self._array = np.zeros((), NUMPY_TYPES[SCALAR_DTYPES[spec.kind]])
        self._tensor = ov.Tensor(self._array, shared_memory=True)
        self._is_bound = False

    def bind(self, request: Any, value: float) -> None:
        """Write the number, and bind its memory on first use. Raise InputRefused for an int beyond int32."""
        if isinstance(value, int) and abs(value) > INT32_MAX:
            raise InputRefused(f"input {self._name}={value} is beyond the int32 range in which OpenVINO computes")
        self._array[()] = value
        if not self._is_bound:
            request.set_input_tensor(self._index, self._tensor)
            self._is_bound = True


class Lane:
    """One infer request with its bindings. Used by one thread at a time."""

    def __init__(
        self,
        compiled: Any,
        cluster: Cluster,
        fed: Sequence[int],
        shapes: Callable[..., Any] | None,
        *,
        alarms: Sequence[str],
    ) -> None:
        self._request = compiled.create_infer_request()
        self._feeds = [_feed(index, position, cluster) for index, position in enumerate(fed)]
        self._outputs = [(index, spec.dtype, Views(spec.dtype)) for index, spec in enumerate(cluster.outputs)]
        self._written: list[Any] = [None] * len(self._outputs)
        self._shapes, self._cluster = shapes, cluster
        self._alarm_index = len(cluster.outputs) if alarms else None
        self._alarms = alarms
        is_blind = any(operator_name(node) in NAN_BLIND for node in cluster.nodes)
        self._watched = tuple(feed.position for feed in self._feeds if feed.is_float and is_blind)
        """Positions of the inputs whose NaN the kernels would lose."""
        self._loses_lowest = any(operator_name(node) in LOWEST_BLIND for node in cluster.nodes)
        self._loses_infinity = any(operator_name(node) in INFINITY_BLIND for node in cluster.nodes)

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run one call, with results in fresh memory. Raise InputRefused for NaN that the kernels would lose."""
        request = self._request
        held = [feed.bind(request, inputs[feed.position]) for feed in self._feeds]
        for position in self._watched:
            if has_nan(inputs[position]):
                raise self._refusal("an input holds NaN, which OpenVINO's kernels lose")
            if self._loses_infinity and has_infinity(inputs[position]):
                raise self._refusal("an input holds infinity, of which OpenVINO's softmax makes no NaN")
            if self._loses_lowest and has_infinity(inputs[position], -1):
                raise self._refusal("an input holds negative infinity, which OpenVINO's max pooling loses")
        if self._shapes is None:
            request.infer(share_outputs=True)
            self._check_alarm()
            return [self._copied(part[0]) for part in self._outputs]
        results: list[torch.Tensor] = []
        for (index, dtype, views), shape in zip(self._outputs, self._shapes(inputs), strict=True):
            result = empty_cpu(shape, _strides_of(shape), dtype)
            view, _ = views.over(result.data_ptr(), shape)
            if view is not self._written[index]:
                request.set_output_tensor(index, view)
                self._written[index] = view
            results.append(result)
        request.infer(share_outputs=True)
        del held
        self._check_alarm()
        return results

    def _check_alarm(self) -> None:
        """Raise InputRefused if the last call had numbers that OpenVINO cannot represent, or loses."""
        if self._alarm_index is not None and self._request.get_output_tensor(self._alarm_index).data:
            reason = ", or ".join(self._alarms)
            raise self._refusal(reason, next(casts_to_int64(self._cluster), None))

    def _refusal(self, reason: str, node: str | None = None) -> InputRefused:
        return InputRefused(reason, backend="openvino", cluster=self._cluster.name, node=node)

    def _copied(self, index: int) -> torch.Tensor:
        """Return a copy of memory that belongs to the request and that its next call overwrites."""
        data: Any = self._request.get_output_tensor(index).data
        return torch.from_numpy(data).clone()  # pyright: ignore[reportUnknownMemberType] - torch's


def has_nan(value: torch.Tensor) -> bool:
    """Return whether any element is NaN. The sum decides in one fast pass, unless infinities cancel in it.

    NumPy adds up on this thread alone. PyTorch would wake OpenMP's threads, which busy-wait for milliseconds afterwards on
    the cores that OpenVINO's need: see the first table of `benchmarks/busy_waiting.py`.
    """
    if value.dtype is torch.bfloat16:  # NumPy has no bfloat16
        return bool(value.isnan().any())
    with np.errstate(all="ignore"):
        total = value.detach().numpy().sum()
    return bool(total != total) and bool(value.isnan().any())


def has_infinity(value: torch.Tensor, sign: int = 1) -> bool:
    """Return whether any element is infinity of this sign, by the sum as in `has_nan`; masks contain -inf."""
    if value.dtype is torch.bfloat16:
        return bool((value == sign * np.inf).any())
    with np.errstate(all="ignore"):
        array = value.detach().numpy()
        return bool(not sign * array.sum() < np.inf) and bool((array == sign * np.inf).any())


def casts_to_int64(cluster: Cluster) -> Iterator[str]:
    """Return the names of a cluster's nodes that convert floats to int64, which may exceed the range of int32."""
    for node in cluster.nodes:
        source, result = (value_of(item) for item in (node.args[0] if node.args else None, node))
        are_tensors = isinstance(source, torch.Tensor) and isinstance(result, torch.Tensor)
        if are_tensors and source.is_floating_point() and result.dtype is torch.int64:
            yield node.name


def _feed(index: int, position: int, cluster: Cluster) -> TensorFeed | NumberFeed:
    spec, name = cluster.inputs[position], cluster.input_names[position]
    if isinstance(spec, ScalarSpec):
        return NumberFeed(index, position, name, spec)
    placeholder = cluster.module.graph.find_nodes(op="placeholder")[position]
    reader = next((user.name for user in placeholder.users if user.op == "call_function"), None)
    return TensorFeed(index, position, name, spec, reader)


class OpenVINOExecutable(Executable):
    """A compiled cluster. Threads take lanes from a stack and return them; a new lane is created if none is free."""

    def __init__(
        self,
        compiled: Any,
        cluster: Cluster,
        fed: Sequence[int],
        *,
        alarms: Sequence[str],
        source: ov.Model | None = None,
        memory: ov.Tensor | None = None,
    ) -> None:
        """Wrap a compiled model.

        `alarms` are the reasons of its alarm, if it has one; `source` is the lowered model, for `dump`; `memory` holds the
        weights of a loaded model.
        """
        self._compiled, self._cluster, self._fed = compiled, cluster, tuple(fed)
        self._alarms, self._source = tuple(alarms), source
        self._shapes = output_shapes(cluster)
        self._lanes: deque[Lane] = deque([self._lane()])
        self._memory = memory  # last: Python releases attributes in this order, and what the lanes hold reads the weights

    def __call__(self, *inputs: Any) -> list[torch.Tensor]:
        """Run one call. Raise RunError for inputs that do not fit and for any exception of OpenVINO."""
        try:
            lane = self._lanes.pop()
        except IndexError:
            lane = self._lane()
        try:
            results = lane.run(inputs)
        except RunError as error:
            self._lanes.append(lane)
            error.backend, error.cluster = "openvino", self._cluster.name
            raise
        except Exception as error:
            raise RunError(f"{type(error).__name__}: {error}", backend="openvino", cluster=self._cluster.name) from error
        self._lanes.append(lane)
        return results

    def save(self, folder: Path) -> None:
        """Write the compiled model with its weights, prepacked if OpenVINO prepacks at compile time."""
        exported = self._compiled.export_model()
        (folder / BLOB).write_bytes(exported if isinstance(exported, bytes) else exported.getvalue())
        (folder / META).write_text(json.dumps({"fed": self._fed, "alarms": self._alarms}))

    def dump(self, folder: Path) -> None:
        """Write the FX program, the IR as lowered (not after a load) and the graph that OpenVINO runs."""
        (folder / "cluster.py.txt").write_text(self._cluster.module.print_readable(print_output=False))
        if self._source is not None:
            ov.serialize(self._source, folder / "lowered.xml", folder / "lowered.bin")
        ov.serialize(self._compiled.get_runtime_model(), folder / "runtime.xml", folder / "runtime.bin")

    def _lane(self) -> Lane:
        return Lane(self._compiled, self._cluster, self._fed, self._shapes, alarms=self._alarms)
