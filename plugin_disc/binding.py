"""The Python function that runs one call, written and compiled: straight-line code without a decision left in it."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from hub.plugin import (
    Cluster,
    InputRefused,
    TensorSpec,
    empty_cpu,
    is_symbolic,
    priced_size,
)
from hub.toolkit.layout import gapped_strides, inverse, memory_order
from hub.toolkit.sizes import Size, python_text, size_of, strides_of
from hub.toolkit.symbols import symbol_texts

from .addresses import address_of
from .guarded import guard
from .kept import Kept
from .pages import LARGE, SMALL
from .sized import Sized
from .torch_private import TensorGuards

_SPARE = torch.zeros(1 << 16)
"""The tensor whose address replaces that of empty tensors, which have none."""


def gapped_inputs(cluster: Cluster) -> dict[int, tuple[Size, ...]]:
    """Return the strides of the inputs, by position, that are read in place although they are not packed."""
    symbols = symbols_of(cluster)
    specs = [(position, spec) for position, spec in enumerate(cluster.inputs) if isinstance(spec, TensorSpec)]
    found = ((position, gapped_strides(spec, symbols)) for position, spec in specs)
    return {position: strides for position, strides in found if strides is not None}


def symbols_of(cluster: Cluster) -> dict[Any, str]:
    """Return the Python text that reads each symbolic size and stride."""
    return symbol_texts(cluster, with_strides=True)


def run_source(cluster: Cluster, *, slots: Sequence[str], workspace: str) -> str:
    """Return the Python text of `run(i0, i1, ...)`: check inputs, allocate outputs, fill the frame, run, return.

    If sizes are symbolic, `sized_for(s0, s1, ...)` computes all that depends on them, once for each combination.
    """
    symbols = symbols_of(cluster)
    texts = {symbol: f"s{place}" for place, symbol in enumerate(symbols)}
    sized = Sized(tuple(texts.values()))
    results: list[str] = []
    for position, spec in enumerate(cluster.outputs):
        order = memory_order(spec)
        shape = _shape_text([spec.shape[dim] for dim in order], texts)
        results += _result_lines(spec, order, shape, position, sized)
    if workspace != "0":
        results += _workspace_lines(workspace, sized)
        results.append("w = (work.data_ptr() + 63) // 64 * 64")
    fields = ", ".join(_slot_text(text, sized) for text in slots)
    lines = [
        f"def run({', '.join(f'i{position}' for position in range(len(cluster.inputs)))}):",
        *_input_lines(cluster, symbols, texts, sized),  # last: it looks up the names that all other lines have added
        *results,
        "frame = frames.pop() if frames else Frame()",
        f"pack_into(frame, 0, {fields})",
        "main(frame)",
        "if frame[0]: outside()",
        "frames.append(frame)",
        f"return ({''.join(_result(place, memory_order(spec)) + ', ' for place, spec in enumerate(cluster.outputs))})",
    ]
    return sized.definition() + "\n    ".join(lines) + "\n"


def _input_lines(cluster: Cluster, symbols: Mapping[Any, str], texts: Mapping[Any, str], sized: Sized) -> list[str]:
    """Return the lines that check all inputs, and look up what depends on their sizes."""
    gapped = gapped_inputs(cluster)
    tensors = [(position, spec) for position, spec in enumerate(cluster.inputs) if isinstance(spec, TensorSpec)]
    lines = [line for position, spec in tensors for line in _prepare(position, spec, is_gapped=position in gapped)]
    for position, spec in tensors:
        shape = sized.name(_shape_text(list(spec.shape), texts))
        lines.append(f"if i{position}.shape != {shape}: wrong({position}, i{position})")
    given = ", ".join(f"i{position}" for position, _ in tensors)
    as_they_are = [f"a{position} = i{position}" for position, _ in tensors if position not in gapped] or ["pass"]
    is_guarded = bool(tensors) and TensorGuards is not None
    if is_guarded:
        if not all(_is_fixed(spec) for _, spec in tensors):
            sized.texts[_guards_text([spec for _, spec in tensors], texts)] = "expected"
        lines = [f"if expected({given}):", *_inside(as_they_are), "else:", *_inside(lines)]
    for position, strides in gapped.items():
        value, wanted = f"i{position}", sized.name(_tuple_text(strides, texts))
        lines.append(f"a{position} = {value} if {value}.stride() == {wanted} else laid({position}, {value}, {wanted})")
    lines = [*(f"s{place} = {text}" for place, text in enumerate(symbols.values())), *sized.look_up(), *lines]
    if not is_guarded or gapped or not symbols or not all(".shape[" in text for text in symbols.values()):
        return lines
    return [  # if the sizes are those of the last call, one test of all inputs is enough
        "known = latest[0]",
        f"if known is not None and known[-1]({given}):",
        *_inside([sized.taken(), *as_they_are]),
        "else:",
        *_inside([*lines, "latest[0] = known"]),
    ]


def _inside(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _result_lines(spec: TensorSpec, order: Sequence[int], shape: str, position: int, sized: Sized) -> list[str]:
    """Return the lines that allocate a result; a large one reuses the memory of an ended call, if there is any."""
    name, sizes = f"o{position}", [spec.shape[dim] for dim in order]
    if not _is_fixed(spec):
        shape, strides, bytes_ = map(sized.name, (shape, f"packed({shape})", f"product({shape}) * {spec.dtype.itemsize}"))
        kept = f"kept({name!r}, {shape}, {strides}, do{position}, {bytes_})"
        return [f"{name} = fresh({shape}, {strides}, do{position}) if {bytes_} < {LARGE} else {kept}"]
    strides = packed(list(map(priced_size, sizes)))
    bytes_ = math.prod(map(priced_size, sizes)) * spec.dtype.itemsize
    if bytes_ >= LARGE:
        return [f"{name} = kept({name!r}, {shape}, {strides}, do{position}, {bytes_})"]
    return [f"{name} = fresh({shape}, {strides}, do{position})"]


def _workspace_lines(workspace: str, sized: Sized) -> list[str]:
    """Return the lines that allocate the memory of intermediate tensors."""
    if not workspace.isdecimal():
        bytes_ = sized.name(f"({workspace}) + 64")
        return [f"work = fresh(({bytes_},), (1,), uint8) if {bytes_} < {SMALL} else workspace({bytes_})"]
    bytes_ = int(workspace) + 64
    return [f"work = workspace({bytes_})" if bytes_ >= LARGE else f"work = fresh(({bytes_},), (1,), uint8)"]


def _is_fixed(spec: TensorSpec) -> bool:
    return not any(is_symbolic(size) for size in spec.shape)


def _guards_text(specs: Sequence[TensorSpec], texts: Mapping[Any, str]) -> str:
    return f"guards({', '.join(_shape_text(spec.shape, texts) for spec in specs)})"


def _guards(cluster: Cluster) -> Callable[..., Callable[..., bool]]:
    """Return a function of sizes that makes the test whether all inputs are packed as captured.

    If the test fails, the inputs are checked one by one. The strides of inputs that are read with their own strides are
    checked separately.
    """
    specs = [spec for spec in cluster.inputs if isinstance(spec, TensorSpec)]
    places = [position for position, spec in enumerate(cluster.inputs) if isinstance(spec, TensorSpec)]
    gapped = gapped_inputs(cluster)
    examples = [torch.empty((0,) * len(spec.shape), dtype=spec.dtype) for spec in specs]

    def guards(*shapes: Sequence[int]) -> Callable[..., bool]:
        strides = [
            [None] * len(shape) if place in gapped else _packed_strides(spec, shape)
            for place, spec, shape in zip(places, specs, shapes, strict=True)
        ]
        return TensorGuards(*examples, dynamic_dims_sizes=list(map(list, shapes)), dynamic_dims_strides=strides).check

    return guards


def _packed_strides(spec: TensorSpec, shape: Sequence[int]) -> list[int]:
    """Return the strides of a tensor without gaps, with its dims in memory in the captured order."""
    order = memory_order(spec)
    steps = dict(zip(order, packed([shape[dim] for dim in order]), strict=True))
    return [steps[dim] for dim in range(len(shape))]


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor without gaps, equal to PyTorch's even if a size is 0."""
    return strides_of(max(1, size) for size in shape)


def _slot_text(text: str, sized: Sized) -> str:
    if text.startswith("w + "):
        return f"w + {sized.name(text.removeprefix('w + '))}"
    if sized.covers(text):
        return sized.name(text)
    return f"{text} or spare" if text.endswith(".data_ptr()") else text


def _prepare(position: int, spec: TensorSpec, *, is_gapped: bool) -> list[str]:
    """Return the lines that make a{position} a packed tensor in memory order; a gapped input is only checked."""
    value = f"i{position}"
    order = memory_order(spec)
    is_plain = order == tuple(range(len(order)))
    looked_at = [
        f"if {value}.dtype is not di{position} or not {value}.is_cpu or {value}.is_neg():",
        f"    wrong({position}, {value})",
    ]
    if is_gapped:
        return looked_at
    return [
        *looked_at,
        f"a{position} = {value}" if is_plain else f"a{position} = {value}.permute({order})",
        f"if not a{position}.is_contiguous(): a{position} = a{position}.contiguous()",
    ]


def _shape_text(sizes: Sequence[Any], texts: Mapping[Any, str]) -> str:
    return _tuple_text(map(size_of, sizes), texts)


def _tuple_text(sizes: Iterable[Size], texts: Mapping[Any, str]) -> str:
    return f"({''.join(python_text(size, texts) + ', ' for size in sizes)})"


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
    """Return the function that `run_source` describes."""
    guarding = guard()
    names: dict[str, Any] = {
        "Frame": ctypes.c_int64 * slots,
        "address": {name: address_of(name) for name in functions},
        "bits": _bits,
        "frames": [],  # those of ended calls: pop and append are atomic
        "fresh": empty_cpu,
        "kept": kept.tensor,
        "laid": _laid_of(cluster),
        "latest": [None],
        "main": main,
        "outside": _outside_of(cluster),
        "packed": packed,
        "pack_into": struct.Struct(f"={slots}q").pack_into,
        "product": math.prod,
        "sized": {},
        "spare": _SPARE.data_ptr(),
        "uint8": torch.uint8,
        "workspace": kept.workspace,
        "wrong": _wrong_of(cluster),
    }
    specs = [spec for spec in cluster.inputs if isinstance(spec, TensorSpec)]
    if specs and TensorGuards is not None:
        names["guards"] = _guards(cluster)
        if all(map(_is_fixed, specs)):
            names["expected"] = names["guards"](*(tuple(map(priced_size, spec.shape)) for spec in specs))
    names |= weights
    if guarding is not None:
        names |= {name: guarding.placed(weight) for name, weight in weights.items()}
        placed = {"fresh": guarding.fresh, "kept": guarding.kept, "workspace": guarding.workspace}
        names |= placed | {"spare": guarding.nowhere}
    for position, spec in enumerate(cluster.inputs):
        if isinstance(spec, TensorSpec):
            names[f"di{position}"] = spec.dtype
    for position, spec in enumerate(cluster.outputs):
        names[f"do{position}"] = spec.dtype
    exec(compile(source, f"<disc {cluster.name}>", "exec"), names)
    # With globals of its own: a function in its own globals is a cycle, which would hold the kept memory.
    if "sized_for" in names:
        own = {name: names[name] for name in ("guards", "packed", "product", "sized") if name in names}
        names["sized_for"] = FunctionType(names["sized_for"].__code__, own)
    run = names.pop("run")  # for the same reason
    return run if guarding is None else guarding.around(run)


def _bits(value: float) -> int:
    """Return a float's bits as an integer."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _outside_of(cluster: Cluster) -> Callable[[], None]:
    def outside() -> None:
        raise InputRefused("an index is out of range", backend="disc", cluster=cluster.name)

    return outside


def _laid_of(cluster: Cluster) -> Callable[[int, torch.Tensor, tuple[int, ...]], torch.Tensor]:
    def laid(position: int, value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor with the compiled strides: the tensor itself if its strides are equivalent, else a copy."""
        if not value.numel() or _steps(value.shape, value.stride()) == _steps(value.shape, strides):
            return value
        once = _without_repeats(value, strides)
        if once is None or _overlaps(once.shape, strides):
            text = f"strides {value.stride()}, {strides} was compiled, where elements lie in one place"
            raise InputRefused(f"input {cluster.input_names[position]} has {text}", backend="disc", cluster=cluster.name)
        return torch.empty_strided(once.shape, strides, dtype=value.dtype).copy_(once)

    return laid


def _without_repeats(value: torch.Tensor, strides: Sequence[int]) -> torch.Tensor | None:
    """Return one of the equal entries along dims of stride 0; None if they are not equal.

    Another backend may return an expanded tensor in memory of its own.
    """
    once = value
    for dim, (size, step) in enumerate(zip(value.shape, strides, strict=True)):
        if step == 0 and size > 1:
            once = once.narrow(dim, 0, 1)
    is_equal = (value == once) | ((value != value) & (once != once))  # NaN does not equal itself
    return once if bool(is_equal.all()) else None


def _steps(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the strides with 0 for dims of size 1, whose stride is never used."""
    return [0 if size == 1 else step for size, step in zip(shape, strides, strict=True)]


def _overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether two elements may share an address: some stride is not beyond the reach of all smaller ones."""
    reach = 0
    for step, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if step <= reach:
                return True
            reach += step * (size - 1)
    return False


def _wrong_of(cluster: Cluster) -> Callable[[int, Any], None]:
    def wrong(position: int, value: Any) -> None:
        found = f"{value.dtype}{list(value.shape)} on {value.device}" if isinstance(value, torch.Tensor) else str(value)
        name = cluster.input_names[position]
        # A refusal: some of eager's kernels return other dtypes than fake tensors announce.
        raise InputRefused(
            f"input {name} is {found}, {cluster.inputs[position]} on cpu was compiled", backend="disc", cluster=cluster.name
        )

    return wrong
