"""Writes and compiles the Python function that runs one call: straight-line code without a decision left in it."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hub.errors import InputRefused
from hub.graph import Cluster, TensorSpec, priced_size
from hub.lowering.layout import inverse, memory_order
from hub.lowering.sizes import python_text, size_of, strides_of
from hub.support import is_symbolic

from .addresses import address_of
from .kept import Kept
from .pages import LARGE, ask_for_large_pages

_SPARE = torch.zeros(1 << 16)
"""Its address stands in for that of empty tensors, which have none."""


def run_source(cluster: Cluster, *, slots: Sequence[str], workspace: str, symbols: Mapping[Any, str]) -> str:
    """Gives the Python text of `run(i0, i1, ...)`: check inputs, allocate outputs, fill the frame, run, return."""
    lines = [f"def run({', '.join(f'i{position}' for position in range(len(cluster.inputs)))}):"]
    texts = {symbol: f"s{place}" for place, symbol in enumerate(symbols)}
    tensors = [(position, spec) for position, spec in enumerate(cluster.inputs) if isinstance(spec, TensorSpec)]
    checked = [line for position, spec in tensors for line in _prepare(position, spec)]
    checked += [f"s{place} = {text}" for place, text in enumerate(symbols.values())]
    for position, spec in tensors:
        shape = _shape_text([spec.shape[dim] for dim in range(len(spec.shape))], texts)
        checked.append(f"if i{position}.shape != {shape}: wrong({position}, i{position})")
    if can_be_expected(cluster):
        lines += [
            f"if expected({', '.join(f'i{position}' for position, _ in tensors)}):",
            *(f"    a{position} = i{position}" for position, _ in tensors),
            "else:",
            *(f"    {line}" for line in checked),
        ]
    else:
        lines += checked
    for position, spec in enumerate(cluster.outputs):
        order = memory_order(spec)
        shape = _shape_text([spec.shape[dim] for dim in order], texts)
        lines += _result_lines(spec, order, shape, position)
    if workspace != "0":
        lines += _workspace_lines(workspace)
        lines.append("w = (work.data_ptr() + 63) // 64 * 64")
    fields = ", ".join(_slot_text(text) for text in slots)
    lines.append("frame = frames.pop() if frames else Frame()")
    lines.append(f"pack_into(frame, 0, {fields})")
    lines.append("main(frame)")
    lines.append("if frame[0]: outside()")
    lines.append("frames.append(frame)")
    results = [_result(position, memory_order(spec)) for position, spec in enumerate(cluster.outputs)]
    lines.append(f"return ({''.join(result + ', ' for result in results)})")
    return "\n    ".join(lines) + "\n"


def _result_lines(spec: TensorSpec, order: Sequence[int], shape: str, position: int) -> list[str]:
    """Lines that give a result memory: what is known to be large has that of a call that has ended, where there is such."""
    name, bytes_ = f"o{position}", _bytes_of(spec)
    if bytes_ is not None and bytes_ >= LARGE:
        strides = tuple(strides_of([priced_size(spec.shape[dim]) for dim in order]))
        return [f"{name} = kept({name!r}, {shape}, {strides}, do{position}, {bytes_})"]
    return [f"{name} = {_fresh_text(spec, order, shape, f'do{position}')}", *_large_pages(name, bytes_)]


def _workspace_lines(workspace: str) -> list[str]:
    """Lines that give intermediate tensors memory."""
    if workspace.isdecimal() and int(workspace) >= LARGE:
        bytes_ = int(workspace) + 64
        return [f"work = kept('work', ({bytes_},), (1,), uint8, {bytes_})"]
    return [f"work = fresh((({workspace}) + 64,), (1,), uint8)", *_large_pages("work", _known(workspace))]


def _known(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def can_be_expected(cluster: Cluster) -> bool:
    """True where all inputs at once can be held against what they were captured as: tensors of known sizes."""
    specs = [spec for spec in cluster.inputs if isinstance(spec, TensorSpec)]
    return _GUARDS is not None and bool(specs) and not any(spec.is_dynamic for spec in specs)


def _expected(cluster: Cluster) -> Callable[..., bool]:
    """Gives what is true of packed inputs just as they were captured; others are looked at one by one."""
    specs = [spec for spec in cluster.inputs if isinstance(spec, TensorSpec)]
    shapes = [list(map(priced_size, spec.shape)) for spec in specs]
    strides = [_packed_strides(spec, shape) for spec, shape in zip(specs, shapes, strict=True)]
    examples = [
        torch.empty_strided(shape, steps, dtype=spec.dtype)
        for spec, shape, steps in zip(specs, shapes, strides, strict=True)
    ]
    assert _GUARDS is not None
    return _GUARDS(*examples, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides).check


def _packed_strides(spec: TensorSpec, shape: Sequence[int]) -> list[int]:
    """Gives the strides of a tensor without gaps, with dims in memory in the order in which it was captured."""
    order = memory_order(spec)
    packed = strides_of(max(1, shape[dim]) for dim in order)
    steps = dict(zip(order, packed, strict=True))
    return [steps[dim] for dim in range(len(shape))]


_GUARDS: Any = getattr(getattr(torch._C, "_dynamo").guards, "TensorGuards", None)  # noqa: B009 - untyped
"""What Dynamo's own guards of tensors are: dtype, device, sizes, strides and the bit for negatives of all inputs in one
call, 0.15 us instead of 0.35 us for each."""


def _fresh_text(spec: TensorSpec, order: Sequence[int], shape: str, dtype: str) -> str:
    """Gives the expression of a packed tensor; where sizes may be 0, strides are PyTorch's matter."""
    sizes = [spec.shape[dim] for dim in order]
    if any(is_symbolic(size) or size == 0 for size in sizes):
        return f"empty({shape}, dtype={dtype})"
    return f"fresh({shape}, {tuple(strides_of(map(priced_size, sizes)))}, {dtype})"


def _empty_strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


_fresh = getattr(getattr(torch._C, "_dynamo").guards, "_empty_strided_cpu", _empty_strided)  # noqa: B009 - untyped
"""What Inductor's code allocates with: a third of the time of `torch.empty` (0.8 us instead of 3)."""


def _bytes_of(spec: TensorSpec) -> int | None:
    """Gives the bytes of a tensor; None where its sizes are symbolic."""
    if any(is_symbolic(size) for size in spec.shape):
        return None
    return math.prod(map(priced_size, spec.shape)) * spec.dtype.itemsize


def _large_pages(name: str, bytes_: int | None) -> list[str]:
    """Lines that ask for large pages: none for what is known to be small."""
    if bytes_ is None:
        return [f"if {name}.nbytes >= {LARGE}: large_pages({name})"]
    return [f"large_pages({name})"] if bytes_ >= LARGE else []


def _slot_text(text: str) -> str:
    return f"{text} or spare" if text.endswith(".data_ptr()") else text


def _prepare(position: int, spec: TensorSpec) -> list[str]:
    """Lines that make a{position} a packed tensor in memory order."""
    value = f"i{position}"
    order = memory_order(spec)
    is_plain = order == tuple(range(len(order)))
    return [
        f"if {value}.dtype is not di{position} or not {value}.is_cpu or {value}.is_neg():",
        f"    wrong({position}, {value})",
        f"a{position} = {value}" if is_plain else f"a{position} = {value}.permute({order})",
        f"if not a{position}.is_contiguous(): a{position} = a{position}.contiguous()",
    ]


def _shape_text(sizes: Sequence[Any], texts: Mapping[Any, str]) -> str:
    return f"({''.join(python_text(size_of(size), texts) + ', ' for size in sizes)})"


def _result(position: int, order: Sequence[int]) -> str:
    is_plain = tuple(order) == tuple(range(len(order)))
    return f"o{position}" if is_plain else f"o{position}.permute({inverse(order)})"


def compiled(
    source: str,
    *,
    main: Any,
    slots: int,
    cluster: Cluster,
    weights: Mapping[str, torch.Tensor],
    functions: Sequence[str],
    kept: Kept,
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Gives the function that `run_source` describes."""
    names: dict[str, Any] = {
        "Frame": ctypes.c_int64 * slots,
        "address": {name: address_of(name) for name in functions},
        "bits": _bits,
        "empty": torch.empty,
        "frames": [],  # those of calls that have ended: taking and giving back are atomic
        "fresh": _fresh,
        "kept": kept.tensor,
        "large_pages": ask_for_large_pages,
        "main": main,
        "outside": _outside_of(cluster),
        "pack_into": struct.Struct(f"={slots}q").pack_into,
        "spare": _SPARE.data_ptr(),
        "uint8": torch.uint8,
        "wrong": _wrong_of(cluster),
    }
    if can_be_expected(cluster):
        names["expected"] = _expected(cluster)
    names |= weights
    for position, spec in enumerate(cluster.inputs):
        if isinstance(spec, TensorSpec):
            names[f"di{position}"] = spec.dtype
    for position, spec in enumerate(cluster.outputs):
        names[f"do{position}"] = spec.dtype
    exec(compile(source, f"<disc {cluster.name}>", "exec"), names)
    return names.pop("run")  # or the function would hold itself, and what it keeps of memory


def _bits(value: float) -> int:
    """Gives a float's bits as an integer."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _outside_of(cluster: Cluster) -> Callable[[], None]:
    def outside() -> None:
        raise InputRefused("an index is out of range", backend="disc", cluster=cluster.name)

    return outside


def _wrong_of(cluster: Cluster) -> Callable[[int, Any], None]:
    def wrong(position: int, value: Any) -> None:
        found = f"{value.dtype}{list(value.shape)} on {value.device}" if isinstance(value, torch.Tensor) else str(value)
        name = cluster.input_names[position]
        # A refusal: some of eager's kernels give other dtypes than fake tensors announce.
        raise InputRefused(
            f"input {name} is {found}, {cluster.inputs[position]} on cpu was compiled", backend="disc", cluster=cluster.name
        )

    return wrong
