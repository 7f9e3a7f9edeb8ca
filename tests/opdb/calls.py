"""Sample calls of every operator in PyTorch's own operator database (`op_db`), and programs that make several of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

Mode = Literal["inference", "training"]

DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "int64": torch.int64,
    "bool": torch.bool,
    "bfloat16": torch.bfloat16,
}

UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators whose values are unspecified: only the form of their results is compared."""

NARROW = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
"""What stands for a rounded dtype in references."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One operator in one dtype, without gradients or with them: all its samples."""

    operator: str
    """Name and variant, as PyTorch's own tests call it."""
    dtype: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.operator}-{self.dtype}-{self.mode}"


@dataclass(frozen=True, eq=False)
class Call:
    """One sample call."""

    cell: Cell
    index: int
    """Which sample of its cell it is, from 0."""
    function: Callable[..., Any]
    arguments: Arguments
    for_gradients: Callable[[Any], Any]
    """What of the result gradients are taken of: factors of a decomposition are unique up to a sign only, say."""

    def __str__(self) -> str:
        return f"{self.cell} {self.index}"

    @property
    def has_values(self) -> bool:
        """Return False if only the form of the results is defined."""
        return self.cell.operator not in UNINITIALISED


@cache
def operators() -> Mapping[str, Any]:
    """Return PyTorch's descriptions of its operators (`OpInfo`), by name and variant, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the import warns about what it imports
        from torch.testing._internal.common_methods_invocations import op_db
    found: dict[str, Any] = {}
    for info in op_db:
        name = info.full_name
        while name in found:
            name += "'"
        found[name] = info
    return found


def cells_of(operator: str) -> tuple[Cell, ...]:
    """Return the cells of an operator on the CPU; gradients only if it has them in that dtype."""
    info = operators()[operator]
    return tuple(
        Cell(operator, name, mode)
        for name, dtype in DTYPES.items()
        for mode, supported in (
            ("inference", info.supported_dtypes("cpu")),
            ("training", info.supported_backward_dtypes("cpu")),
        )
        if dtype in supported and dtype in info.supported_dtypes("cpu")
    )


def calls_of(cell: Cell) -> Iterator[Call]:
    """Yield the sample calls of a cell, always the same ones."""
    info = operators()[cell.operator]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = list(info.sample_inputs("cpu", DTYPES[cell.dtype], requires_grad=cell.mode == "training"))
    for index, sample in enumerate(samples):
        arguments = ((sample.input, *sample.args), dict(sample.kwargs))
        yield Call(cell, index, info.get_op(), arguments, sample.output_process_fn_grad)


def joined(calls: Sequence[Call]) -> Callable[[Sequence[Arguments]], list[Any]]:
    """Return a function that makes all the calls, one per line, on the arguments that it receives.

    Lines, not a loop: Dynamo skips a loop in which one call cannot be captured.
    """
    names = [f"r{position}" for position in range(len(calls))]
    lines = [f"    {name} = f{name}(*given[{at}][0], **given[{at}][1])" for at, name in enumerate(names)]
    source = "\n".join(("def run(given):", *lines, f"    return [{', '.join(names)}]"))
    namespace: dict[str, Any] = {f"f{name}": call.function for name, call in zip(names, calls, strict=True)}
    exec(source, namespace)
    return namespace["run"]


def copied(arguments: Arguments) -> Arguments:
    """Return copies of the arguments; strides, shared memory and `requires_grad` are preserved."""
    storages: dict[int, torch.UntypedStorage] = {}
    tensors: dict[int, torch.Tensor] = {}

    def copy(value: Any) -> Any:
        if isinstance(value, torch.Generator):
            return torch.Generator(value.device).set_state(value.get_state())
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in tensors:
            tensors[id(value)] = _copied_tensor(value, storages).requires_grad_(value.requires_grad)
        return tensors[id(value)]

    return pytree.tree_map(copy, arguments)


def _copied_tensor(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    plain = tensor.detach()
    if type(plain) is not torch.Tensor or plain.layout is not torch.strided or plain.is_conj() or plain.is_neg():
        return plain.clone()
    storage = plain.untyped_storage()
    copy = storages.setdefault(storage._cdata, storage.clone())
    return torch.empty(0, dtype=plain.dtype).set_(copy, plain.storage_offset(), plain.shape, plain.stride())


def widened(call: Call, *, moved_by: float) -> Call:
    """Return the call in float64, with each input moved by up to `moved_by` roundings of its own dtype at random."""
    generator = torch.Generator().manual_seed(11)

    def widen(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return NARROW.get(value, value)
        if not isinstance(value, torch.Tensor) or value.dtype not in NARROW:
            return value
        wide = value.detach().to(NARROW[value.dtype])
        if moved_by and wide.layout is torch.strided:
            signs = torch.rand(wide.shape, generator=generator, dtype=torch.float64) * 2 - 1
            wide = wide + wide * signs * moved_by * torch.finfo(value.dtype).eps
        return wide.requires_grad_(value.requires_grad)

    return replace(call, arguments=pytree.tree_map(widen, call.arguments))
