"""Lowers a cluster to the text of a StableHLO program, by torch-mlir, for sizes that are numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hub.plugin import Cluster
from hub.toolkit.arguments import Sizes, specialised
from hub.toolkit.decompositions import completed, composites_said
from hub.toolkit.indices import bounded
from hub.toolkit.mlir_text import inlined
from hub.toolkit.recurrence import unrolled

TO_BACKEND = "builtin.module(func.func(torch-match-quantized-custom-ops),torchdynamo-export-to-torch-backend-pipeline)"
TO_STABLEHLO = "builtin.module(torch-backend-to-stablehlo-backend-pipeline)"
_UNSIGNED_COMPARISON = re.compile(r"(stablehlo\.compare \w+, [^:\n]*, )SIGNED( : \(tensor<(?:[\dx]+x)?(?:i1|ui\d+)>)")
"""torch-mlir 20261001 compares booleans and unsigned numbers as signed ones, which XLA refuses."""

_FOREIGN = ("= arith.constant dense<", "= stablehlo.constant dense<")
"""torch-mlir leaves constants in a dialect that clients which come as libraries do not read."""
_PRODUCTS = frozenset(("stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution"))


@dataclass(frozen=True)
class Lowered:
    """One function `main` in StableHLO."""

    text: str
    fed: tuple[int, ...]
    """For each argument, its position among the cluster's inputs and, behind these, its weights."""


def lower(cluster: Cluster, sizes: Sizes, target: str) -> Lowered:
    """Return the program for these sizes. Raises whatever torch-mlir raises.

    For a TPU a call's inputs are copied, and nobody reads the copies again: they are donated, results may take their place.
    """
    from torch_mlir.extras import fx_decomp_util

    torch_mlirs: Any = fx_decomp_util  # whose annotations leave the functions' types open
    table = {**completed(torch_mlirs.get_decomposition_table()), torch.ops.aten._to_copy.default: _wrapped}
    program = specialised(cluster, sizes, table, prepare=_prepare)
    given = len(cluster.inputs) if target == "tpu" else 0
    donated = tuple(place for place, position in enumerate(program.fed) if position < given)
    return Lowered(_stablehlo(program.module, is_exact=target != "cpu", donated=donated), program.fed)


def _wrapped(value: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    """Return floats as bytes by way of wide integers, whose low bits eager keeps: XLA cuts floats off at 0 and 255."""
    if dtype != torch.uint8 or not value.dtype.is_floating_point:
        return NotImplemented
    return value.to(torch.int64).to(torch.uint8)


def _prepare(module: fx.GraphModule) -> None:
    bounded(module)
    unrolled(module)
    composites_said(module)


def _stablehlo(module: fx.GraphModule, *, is_exact: bool, donated: Sequence[int]) -> str:
    """Return the text, with large constants in place: XLA knows no resources."""
    from torch_mlir import passmanager
    from torch_mlir.dialects import torch as torch_dialect
    from torch_mlir.extras.fx_importer import FxImporter

    dialect: Any = torch_dialect
    manager: Any = passmanager
    with _mlir().Context() as context:
        context.enable_multithreading(False)
        dialect.register_dialect(context)
        importer: Any = FxImporter(context=context)
        importer.import_graph_module(module, func_name="main")
        for passes in (TO_BACKEND, TO_STABLEHLO):
            manager.PassManager.parse(passes).run(importer.module.operation)
        if is_exact:
            importer.module.operation.walk(_in_full)
        _donate(importer.module, donated)
        text = _UNSIGNED_COMPARISON.sub(r"\1UNSIGNED\2", inlined(str(importer.module)))
        return text.replace(*_FOREIGN)


def _in_full(operation: Any) -> Any:
    """Have products computed in their inputs' own precision: a GPU takes tf32 otherwise, and a TPU bf16."""
    ir = _mlir()
    if operation.name in _PRODUCTS:
        operation.attributes["precision_config"] = ir.Attribute.parse(
            "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"
        )
    return ir.WalkResult.ADVANCE


def _donate(module: Any, places: Sequence[int]) -> None:
    if not places:
        return
    ir = _mlir()
    (main,) = (operation for operation in module.body.operations if operation.operation.name == "func.func")
    said = [
        ir.Attribute.parse("{jax.buffer_donor = true}" if place in places else "{}")
        for place, _ in enumerate(main.arguments)
    ]
    main.attributes["arg_attrs"] = ir.ArrayAttr.get(said)


def _mlir() -> Any:
    """Return torch-mlir's bindings of MLIR, which have no types."""
    from torch_mlir import ir

    return ir
