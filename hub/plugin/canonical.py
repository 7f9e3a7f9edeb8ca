"""Canonical text of programs: equal programs give equal text, whatever their names, and different programs never do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from hub.plugin.table import elements, is_symbolic
from hub.torch_private import OperatorBase


@dataclass(frozen=True, slots=True)
class Relation:
    """A fact that holds for every call: the range of a symbolic size, or a guard over some."""

    symbols: frozenset[str]
    """Names of the symbols that the relation mentions."""
    text: str


def canonical_text(module: fx.GraphModule, relations: Iterable[Relation] = ()) -> str:
    """Print a program with nodes renamed by position, and the relations between its own symbolic sizes.

    Constants print by form, not by value; see `constants_read`.
    """
    printer = _Printer(module)
    lines = [printer.line(node) for node in module.graph.nodes]
    known = tuple(relations)
    symbols = _symbols(module) if known else frozenset[str]()
    return "\n".join((*lines, *sorted(relation.text for relation in known if relation.symbols <= symbols)))


def constants_read(module: fx.GraphModule, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor that a node reads, with its name, node by node, including those of nested programs.

    A tensor that is read twice is yielded twice: which node reads which tensor is part of what a program does.
    """
    for node in module.graph.find_nodes(op="get_attr"):
        value = _attribute(module, node)
        if isinstance(value, fx.GraphModule):
            yield from constants_read(value, f"{path}{node.target}.")
        elif isinstance(value, torch.Tensor):
            yield f"{path}{node.target}", value


def relations_in(module: fx.GraphModule) -> tuple[Relation, ...]:
    """Return what PyTorch knows so far of the symbolic sizes in a program: the range of each, and every guard."""
    size = next(_symbolic_sizes(module), None)
    if size is None:
        return ()
    env, symbols = size.node.shape_env, _symbols(module)
    ranges = [
        Relation(frozenset({str(symbol)}), f"{symbol} in [{bounds.lower}, {bounds.upper}]")
        for symbol, bounds in env.var_to_range.items()
        if str(symbol) in symbols
    ]
    guards = [Relation(_names_in(guard.expr), f"holds {guard.expr}") for guard in env.guards]
    return tuple(sorted({*ranges, *guards}, key=lambda relation: relation.text))


def tensor_digest(tensor: torch.Tensor) -> str:
    """Return the digest of dtype, shape, stride, device and every byte of a tensor."""
    detached = tensor.detach()
    form = tuple(detached.stride()) if detached.layout is torch.strided else detached.layout
    header = f"{detached.dtype} {tuple(detached.shape)} {form} {detached.device}"
    dense = detached if detached.layout is torch.strided else detached.to_dense()
    plain = dense.cpu().resolve_conj().resolve_neg().contiguous()
    digest = hashlib.sha256(header.encode())
    if plain.numel():
        data: Any = as_bytes(plain).numpy()
        digest.update(data)
    return digest.hexdigest()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's elements in order, as bytes; without a copy if they already are contiguous."""
    flat = tensor.contiguous().reshape(-1)
    if flat.stride() != (1,):  # one element counts as contiguous with any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)


def text_digest(text: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


class _Reference:
    """A node in printed arguments, whose text cannot be confused with that of another argument."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __repr__(self) -> str:
        return f"%{self._number}"


_NAMED = frozenset({"builtins", "math", "operator", "_operator", "torch"})
"""Packages whose functions are identified by name, given PyTorch's version; others print with their address."""


class _Printer:
    """Printer for the nodes of one program."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._number: Mapping[fx.Node, int] = {node: index for index, node in enumerate(module.graph.nodes)}
        self._owners: dict[int, int] = {}
        """By memory: the first input in it."""

    def line(self, node: fx.Node) -> str:
        """Return the line of a node. Must be called in node order."""
        number, value = self._number[node], node.meta.get("val")
        arguments = map_arg((node.args, node.kwargs), self._reference)
        marks = self._input_marks(number, value) if node.op in ("placeholder", "get_attr") else ""
        return f"{number} {node.op} {self._target(node)} {arguments!r} -> {_value_text(value)}{marks}"

    def _reference(self, node: fx.Node) -> Any:
        return _Reference(self._number[node])

    def _target(self, node: fx.Node) -> str:
        if node.op == "call_function":
            return _function_text(node.target)
        value = _attribute(self._module, node) if node.op == "get_attr" else None
        if isinstance(value, fx.GraphModule):
            return f"{{{canonical_text(value)}}}"
        return "" if value is None or isinstance(value, torch.Tensor) else f"{type(value).__name__} {value!r}"

    def _input_marks(self, number: int, value: Any) -> str:
        """Return what else a compiler may assume of an input: its storage offset, and which input it shares memory with."""
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return ""
        memory = value.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage] - fake tensors have no address
        offset, first = value.storage_offset(), self._owners.setdefault(memory, number)
        claims = {
            "grad": value.requires_grad,
            "conj": value.is_conj(),
            "neg": value.is_neg(),
            f"at {offset}": is_symbolic(offset) or offset != 0,
            f"in {first}": first != number,
        }
        return "".join(f" {claim}" for claim, holds in claims.items() if holds)


def _function_text(target: Any) -> str:
    module, name = str(getattr(target, "__module__", "")), str(getattr(target, "__qualname__", "<"))
    is_named = module.split(".")[0] in _NAMED and "<" not in name and not isinstance(target, OperatorBase)
    return f"{module}.{name}" if is_named else str(target)


def _value_text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        form = list(value.stride()) if value.layout is torch.strided else value.layout
        return f"{value.dtype} {list(value.shape)} {form} {value.device}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_value_text, elements(value)))})"
    return f"{type(value).__name__} {value}"


def _attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = module
    for name in str(node.target).split("."):
        value = getattr(value, name, None)
    return value


def _symbols(module: fx.GraphModule) -> frozenset[str]:
    """Return the names of the symbols in a program's sizes."""
    return frozenset[str]().union(*(_names_in(size.node.expr) for size in _symbolic_sizes(module)))


def _names_in(expression: Any) -> frozenset[str]:
    return frozenset(map(str, expression.free_symbols))


def _symbolic_sizes(module: fx.GraphModule) -> Iterator[Any]:
    """Yield every symbolic number in the values of a program's nodes."""
    for node in module.graph.nodes:
        for value in elements(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                strides = value.stride() if value.layout is torch.strided else ()
                yield from (size for size in (*value.shape, *strides) if is_symbolic(size))
            elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                yield value
