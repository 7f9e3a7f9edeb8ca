"""A tensor program and its schedule as readable text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hub.toolkit.affine import Affine
from hub.toolkit.groups import Group, Stage
from hub.toolkit.reading import in_order
from hub.toolkit.tensors import (
    Fill,
    Iota,
    Join,
    Number,
    Pointwise,
    Product,
    Put,
    Reduce,
    Reshape,
    Scan,
    Source,
    Take,
    Template,
    Tensor,
    View,
)

from .attention import Attention
from .products import Epilogue
from .prologues import Multiplied, Prologue


class Names(dict[Tensor, str]):
    """A name for each tensor: inputs and weights have their own, others are numbered in order, unlike memory in kernels."""

    def __missing__(self, tensor: Tensor) -> str:
        self[tensor] = tensor.name if isinstance(tensor, Source) else f"%{len(self)}"
        return self[tensor]


def named(outputs: Sequence[Tensor]) -> Names:
    """Name the tensors behind some outputs, in order."""
    names = Names()
    for tensor in in_order(outputs):
        _ = names[tensor]
    return names


def program_text(outputs: Sequence[Tensor], origins: Mapping[Tensor, str]) -> str:
    """Return a program line by line: each tensor with its dtype, shape and expression, and the node that it is for."""
    names = named(outputs)
    given = [f"{name}: {_form(tensor)}" for tensor, name in names.items() if isinstance(tensor, Source)]
    made = [_line(tensor, names, origins) for tensor in in_order(outputs) if not isinstance(tensor, Source)]
    return "\n".join([*given, *made, f"return {', '.join(names[output] for output in outputs)}"]) + "\n"


def schedule_text(
    outputs: Sequence[Tensor], stages: Sequence[tuple[Stage, Epilogue | None]], origins: Mapping[Tensor, str]
) -> str:
    """Return a schedule as text: each kernel with its loops, the tensors that it computes there, and its stores."""
    names = named(outputs)
    parts: list[str] = []
    for place, (stage, epilogue) in enumerate(stages):
        lines = [f"k{place}: {_about(stage)}"]
        if isinstance(stage, Group):
            lines += _members(stage, names, origins)
        else:
            lines.append(f"    {_line(stage, names, origins)}")
        if isinstance(stage, Multiplied):
            for side, prologue in (("left", stage.left), ("right", stage.right)):
                lines += _prologue(side, prologue, names, origins)
        if isinstance(stage, Attention):
            lines += ["  with scores", f"    {_line(stage.dots, names, origins)}", *_members(stage.between, names, origins)]
        if epilogue is not None:
            lines += ["  on the way out", *_members(epilogue.group, names, origins)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _about(stage: Stage) -> str:
    if not isinstance(stage, Group):
        return type(stage).__name__.lower()
    kept = [str(stage.domain[loop]) for loop in stage.kept]
    inner = [str(stage.domain[loop]) for loop in sorted(stage.reduced)]
    return f"loops over [{', '.join(kept)}]" + (f", reducing [{', '.join(inner)}]" if inner else "")


def _prologue(side: str, prologue: Prologue | None, names: Names, origins: Mapping[Tensor, str]) -> list[str]:
    return [] if prologue is None else [f"  with {side}", *_members(prologue.group, names, origins)]


def _members(group: Group, names: Names, origins: Mapping[Tensor, str]) -> list[str]:
    lines = [f"    {_line(member, names, origins)}" for member in group.members]
    for store in group.stores:
        at = "" if store.into is store.member else f" at {_tuple(store.offsets)}"
        lines.append(f"    store {names[store.member]} in {names[store.into]}{at}")
    return lines


def _line(tensor: Tensor, names: Names, origins: Mapping[Tensor, str]) -> str:
    node = f"  # {origins[tensor]}" if tensor in origins else ""
    return f"{names[tensor]}: {_form(tensor)} = {_made(tensor, names)}{node}"


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _made(tensor: Tensor, names: Names) -> str:
    def name(each: Tensor) -> str:
        return names[each]

    def index(parts: Sequence[Affine | Tensor]) -> str:
        return f"[{', '.join(name(part) if isinstance(part, Tensor) else _affine(part) for part in parts)}]"

    match tensor:
        case Fill():
            return f"fill({tensor.value})"
        case Number():
            return f"number({tensor.value})"
        case Iota():
            return f"iota(along {tensor.dim})"
        case View():
            return f"{name(tensor.source)}{index(tensor.index)}"
        case Reshape():
            return f"reshape({name(tensor.source)})"
        case Pointwise():
            return f"{tensor.function}({', '.join(map(name, tensor.arguments))})"
        case Take():
            return f"take {name(tensor.source)}{index(tensor.index)}"
        case Reduce():
            return f"{tensor.function}({name(tensor.source)}, along {', '.join(map(str, tensor.dims))})"
        case Join():
            pieces = ", ".join(f"{name(piece)} at {_tuple(offsets)}" for piece, offsets in tensor.pieces)
            return f"join({pieces}" + (")" if tensor.fill is None else f", else {tensor.fill})")
        case Product():
            return f"product({name(tensor.left)}, {name(tensor.right)})"
        case Scan():
            return f"running {tensor.function}({name(tensor.source)}, along {tensor.dim})"
        case Put():
            return f"put {name(tensor.values)} into {name(tensor.source)}{index(tensor.index)}, {tensor.function}"
        case Multiplied():
            return f"product({name(tensor.product.left)}, {name(tensor.product.right)})"
        case Attention():
            return f"attention({name(tensor.query)}, {name(tensor.key)}, {name(tensor.value)})"
        case Template():
            return f"{type(tensor).__name__.lower()}({', '.join(map(name, tensor.given))})"
        case _:
            return type(tensor).__name__.lower()


def _affine(part: Affine) -> str:
    """Return an index over the dims d0, d1, ... of the result."""
    terms = [f"d{variable}" if factor == 1 else f"{factor}*d{variable}" for variable, factor in part.terms]
    return " + ".join([*terms, *([str(part.constant)] if part.constant != 0 or not terms else [])])


def _tuple(parts: Sequence[object]) -> str:
    return f"({', '.join(map(str, parts))})"
