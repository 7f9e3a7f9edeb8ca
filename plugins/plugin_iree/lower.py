"""Lowers a cluster to the text of a program in torch-mlir's torch dialect, for given sizes or for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hub.plugin import Cluster, is_symbolic, output_arguments
from hub.toolkit.arguments import Decompositions, Sizes, Specialised, specialised
from hub.toolkit.decompositions import (
    completed,
    composites_said,
    keeping_nan,
    layered,
    said_by_pytorch,
    views_through_one_dim,
)
from hub.toolkit.indices import bounded
from hub.toolkit.open_sizes import opened
from hub.toolkit.recurrence import unrolled

ENTRY = "main"
SAID = ("gelu.default",)
"""Operators lowered by PyTorch's own decompositions: torch-mlir's return other numbers (gelu by tanh is off by 5e-5)."""
SCOPE = "weights"
"""Scope of the parameters. Each is named by its position among the cluster's weights."""
_BODY = re.compile(r"^module\b.*\{$", re.MULTILINE)
"""Pattern of the line after which a module's own lines begin."""
_TORCH = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "si64",
    torch.int32: "si32",
    torch.int16: "si16",
    torch.int8: "si8",
    torch.uint8: "ui8",
    torch.bool: "i1",
}


@dataclass(frozen=True)
class Lowered:
    """A lowered cluster: a function `main` in the torch dialect that takes inputs and reads weights from parameters."""

    text: str
    fed: tuple[int, ...]
    """For each argument, its position among the cluster's inputs."""
    condition: str = ""
    """Condition on the sizes for which a program for all sizes is correct; "" for a program for given sizes."""


def lower(cluster: Cluster, sizes: Sizes) -> Lowered:
    """Return the program for these sizes. Any exception of torch-mlir propagates."""
    return _lowered(cluster, specialised(cluster, sizes, _table(), prepare=_prepare))


def lower_open(cluster: Cluster, least: int) -> Lowered:
    """Return one program, with a condition, for all sizes from `least` on. Any exception of torch-mlir propagates."""
    found = opened(cluster, _table(), least=least, prepare=_prepare)
    return _lowered(cluster, found.program, found.condition)


def _table() -> Decompositions:
    from torch_mlir.extras import fx_decomp_util

    torch_mlirs: Any = fx_decomp_util  # its annotations leave the functions' types open
    table = completed(torch_mlirs.get_decomposition_table())
    negated = {torch.ops.aten.neg.default: _negated}
    return layered(table, said_by_pytorch(*SAID), keeping_nan(), views_through_one_dim(), negated)


def _negated(value: torch.Tensor) -> torch.Tensor:
    """Negate integers by a product: torch-mlir's linalg negates them in floating point, which makes 2^53 + 1 even."""
    return NotImplemented if value.dtype.is_floating_point else value * -1


def _lowered(cluster: Cluster, program: Specialised, condition: str = "") -> Lowered:
    entry = _entry(program, len(cluster.inputs))
    # A function as replacement: a text would be searched for group references.
    text = _BODY.sub(lambda found: f"{found[0]}\n{entry}", _imported(program.module), count=1)
    return Lowered(text, tuple(position for position in program.fed if position < len(cluster.inputs)), condition)


def _prepare(module: fx.GraphModule) -> None:
    bounded(module)
    unrolled(module)
    composites_said(module)


def _imported(module: fx.GraphModule) -> str:
    from torch_mlir import ir
    from torch_mlir.dialects import torch as torch_dialect
    from torch_mlir.extras.fx_importer import FxImporter

    mlir: Any = ir
    dialect: Any = torch_dialect
    with mlir.Context() as context:
        context.enable_multithreading(False)
        dialect.register_dialect(context)
        importer: Any = FxImporter(context=context)
        importer.import_graph_module(module, func_name="cluster", func_visibility="private")
        return str(importer.module)


def _entry(program: Specialised, inputs: int) -> str:
    """Return the function that IREE exports: it passes arguments and parameters to the cluster's, which is inlined."""
    arguments: list[str] = []
    taken: list[str] = []
    types: list[str] = []
    lines: list[str] = []
    parameters: list[str] = []
    for position, node in zip(program.fed, program.module.graph.find_nodes(op="placeholder"), strict=True):
        kind = _type(node.meta["val"])
        types.append(kind)
        taken.append(f"%arg{position}")
        if position < inputs:
            arguments.append(f"%arg{position}: {kind}")
            continue
        name, builtin = f"weight{position - inputs}", _builtin(node.meta["val"])
        parameters.append(f'util.global private @{name} = #flow.parameter.named<"{SCOPE}"::"{name}"> : {builtin}')
        lines.append(f"  %{name} = util.global.load immutable @{name} : {builtin}")
        lines.append(f"  %arg{position} = torch_c.from_builtin_tensor %{name} : {builtin} -> {kind}")
    results = [_vtensor(node.meta["val"]) for node in output_arguments(program.module)]
    given = ", ".join(f"%result#{place}" for place in range(len(results)))
    return "\n".join(
        [
            *parameters,
            f"func.func @{ENTRY}({', '.join(arguments)}) -> {_listed(results)} {{",
            *lines,
            f"  %result:{len(results)} = func.call @cluster({', '.join(taken)}) : {_listed(types)} -> {_listed(results)}",
            f"  return {given} : {', '.join(results)}",
            "}",
        ]
    )


def _listed(types: Sequence[str]) -> str:
    return f"({', '.join(types)})"


def _type(value: Any) -> str:
    return _vtensor(value) if isinstance(value, torch.Tensor) else "!torch.int"


def _vtensor(value: torch.Tensor) -> str:
    sizes = ("?" if is_symbolic(size) else str(size) for size in value.shape)
    return f"!torch.vtensor<[{','.join(sizes)}],{_TORCH[value.dtype]}>"


def _builtin(value: Any) -> str:
    """Return MLIR's builtin type, whose integers have no sign."""
    return f"tensor<{''.join(f'{size}x' for size in value.shape)}{_TORCH[value.dtype].lstrip('su')}>"
