"""Writes and compiles the Python function that runs one call: straight-line code with no decisions left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from hub.plugin import (
    Cluster,
    RunError,
    ScalarSpec,
    Spec,
    TensorSpec,
    empty_cpu,
    is_symbolic,
)
from hub.toolkit.sizes import strides_of

from .library import onnxruntime
from .lower.builder import ELEMENT
from .lower.call import number_dtype
from .program import NAME, Edges
from .sizes import shape_text, sources

ort = onnxruntime.capi.onnxruntime_pybind11_state
_CPU = ort.OrtDevice(ort.OrtDevice.cpu(), ort.OrtDevice.default_memory(), 0)
_SPARE = torch.empty(16, device="cpu")
"""A buffer whose address stands in for the missing address of empty tensors, which ORT would refuse."""


def run_source(inputs: Sequence[Spec], outputs: Sequence[TensorSpec], edges: Edges) -> str:
    """Return the Python text of `run(i0, i1, ...)`: check and bind inputs, allocate and bind outputs, run, return.

    A tensor at the address and of the sizes of the binding's last call is not bound again: buffers and freed memory recur.
    """
    known = sources(inputs)
    shapes = [shape_text(spec, known) for spec in outputs]
    bound = [position for position, name in enumerate(edges.inputs) if name]
    last = [f"last_i{position}" for position in bound]
    if None not in shapes:  # else ORT allocates some, and all are unbound after the call
        last += [f"last_o{position}" for position in range(len(outputs))]
    lines = [f"def run({', '.join(f'i{position}' for position in range(len(inputs)))}):"]
    for position, (spec, name, order) in enumerate(zip(inputs, edges.inputs, edges.input_orders, strict=True)):
        if name:
            lines += _prepare(position, spec, order)
    slot = "".join(f"{name}, " for name in ("b", *last))
    lines += ["try:", f"    {slot}= pool.pop()", "except IndexError:", "    b = b_new()"]
    lines += [f"    {name} = None" for name in last]
    for position in bound:
        element = _element(inputs[position])
        lines += _bind(f"i{position}", f"a{position}", f"bind_input({edges.inputs[position]!r}, cpu, {element}")
    for position, (spec, name, shape, order) in enumerate(
        zip(outputs, edges.outputs, shapes, edges.output_orders, strict=True)
    ):
        lines += _allocate(position, spec, shape, order)
        bind = f"bind_output({name!r}, cpu"
        if shape is None:
            lines.append(f"b.{bind})")
        elif None in shapes:
            lines.append(f"b.{bind}, {ELEMENT[spec.dtype]}, o{position}.shape, o{position}.data_ptr() or spare)")
        else:
            lines += _bind(f"o{position}", f"o{position}", f"{bind}, {ELEMENT[spec.dtype]}")
    lines.append("run_session(b, None)")
    if None in shapes:
        lines.append("found = b.get_outputs()")
        lines += [
            f"o{position} = taken(found, {position}, dtype_o{position})"
            for position, shape in enumerate(shapes)
            if shape is None
        ]
        lines.append("b.clear_binding_outputs()")
    lines.append(f"pool.append(({slot}))")
    lines.append(
        f"return ({''.join(_result(position, order) + ', ' for position, order in enumerate(edges.output_orders))})"
    )
    return "\n    ".join(lines) + "\n"


def _prepare(position: int, spec: Spec, order: Sequence[int]) -> list[str]:
    """Return lines that make a{position} a contiguous tensor of the right dtype, in memory order."""
    value = f"i{position}"
    if isinstance(spec, ScalarSpec):
        return [f"a{position} = number({value}, dtype_i{position})"]
    permuted = f"{value}.permute({tuple(order)})" if order else value
    return [
        f"if {value}.dtype is not dtype_i{position} or not {value}.is_cpu:",
        f"    wrong({position}, {value})",
        f"a{position} = {permuted}",
        f"if not a{position}.is_contiguous():",
        f"    a{position} = a{position}.contiguous()",
    ]


def _bind(name: str, value: str, start: str) -> list[str]:
    """Return lines that bind a tensor, by a call that begins so, unless last_{name} says that it is bound."""
    return [
        f"at = {value}.data_ptr() or spare, {value}.shape",
        f"if at != last_{name}:",
        f"    b.{start}, at[1], at[0])",
        f"    last_{name} = at",
    ]


def _allocate(position: int, spec: TensorSpec, shape: str | None, order: Sequence[int]) -> list[str]:
    """Return lines that allocate output `position` if its sizes are known; otherwise ORT allocates it."""
    if shape is None:
        return []
    if not any(map(is_symbolic, spec.shape)):
        sizes = tuple(int(spec.shape[dim]) for dim in order or range(len(spec.shape)))
        return [f"o{position} = empty_cpu({sizes}, {strides_of(sizes)}, dtype_o{position})"]
    lines: list[str] = []
    if order:
        lines.append(f"s{position} = {shape}")
        shape = f"({', '.join(f's{position}[{dim}]' for dim in order)},)"
    return [*lines, f"o{position} = empty({shape}, dtype=dtype_o{position}, device='cpu')"]


def _result(position: int, order: Sequence[int]) -> str:
    inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
    return f"o{position}.permute({inverse})" if order else f"o{position}"


def _element(spec: Spec) -> int:
    return ELEMENT[spec.dtype if isinstance(spec, TensorSpec) else number_dtype(spec.value)]


def compiled(source: str, session: Any, cluster: Cluster) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return the function of `run_source` for one session."""
    # The low-level session: the public wrapper costs more than the binding itself, and hides the form that takes pointers.
    inner = session._sess
    names: dict[str, Any] = {
        "b_new": lambda: ort.SessionIOBinding(inner),
        "cpu": _CPU,
        "empty": torch.empty,
        "empty_cpu": empty_cpu,
        "math": math,
        "number": _number,
        "pool": [],
        "run_session": inner.run_with_iobinding,
        "spare": _SPARE.data_ptr(),
        "taken": _taken,
        "torch": torch,
        "wrong": _refuser(cluster),
    }
    for position, spec in enumerate(cluster.inputs):
        names[f"dtype_i{position}"] = spec.dtype if isinstance(spec, TensorSpec) else number_dtype(spec.value)
    for position, spec in enumerate(cluster.outputs):
        names[f"dtype_o{position}"] = spec.dtype
    exec(compile(source, f"<onnxruntime {cluster.name}>", "exec"), names)
    return names["run"]


def _number(value: float, dtype: torch.dtype) -> torch.Tensor:
    """Return a number as a 0-d tensor; an integer from a cache, because sizes repeat."""
    return torch.tensor(value, dtype=dtype) if isinstance(value, float) else _integer(value, dtype)


@lru_cache(maxsize=4096)
def _integer(value: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype)


def _taken(found: Sequence[Any], position: int, dtype: torch.dtype) -> torch.Tensor:
    """Return an output that ORT allocated because its size depends on data. DLPack from ORT has booleans only as bytes."""
    tensor = torch.from_dlpack(found[position].to_dlpack())
    return tensor.view(torch.bool) if dtype is torch.bool else tensor


def _refuser(cluster: Cluster) -> Any:
    def wrong(position: int, value: Any) -> None:
        found = f"{value.dtype} on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
        name = cluster.input_names[position]
        raise RunError(
            f"input {name} is {found}, {cluster.inputs[position]} on cpu was compiled", backend=NAME, cluster=cluster.name
        )

    return wrong
