"""Lowers a cluster to the text of a StableHLO program, by torch-mlir, for fixed sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from hub.plugin import Cluster
from hub.toolkit.arguments import Sizes, specialised
from hub.toolkit.decompositions import completed, composites_said, layered
from hub.toolkit.indices import bounded
from hub.toolkit.mlir_text import inlined
from hub.toolkit.recurrence import unrolled

TO_BACKEND = "builtin.module(func.func(torch-match-quantized-custom-ops),torchdynamo-export-to-torch-backend-pipeline)"
TO_STABLEHLO = "builtin.module(torch-backend-to-stablehlo-backend-pipeline)"
_UNSIGNED_COMPARISON = re.compile(r"(stablehlo\.compare \w+, [^:\n]*, )SIGNED( : \(tensor<(?:[\dx]+x)?(?:i1|ui\d+)>)")
"""Pattern of signed comparisons: torch-mlir 20261001 compares booleans and unsigned numbers as signed, which XLA
refuses."""

_FOREIGN = ("= arith.constant dense<", "= stablehlo.constant dense<")
"""Constants that torch-mlir leaves in a dialect that clients from libraries do not read."""
_PRODUCTS = frozenset(("stablehlo.dot", "stablehlo.dot_general", "stablehlo.convolution"))


@dataclass(frozen=True)
class Lowered:
    """A lowered cluster: one function `main` in StableHLO."""

    text: str
    fed: tuple[int, ...]
    """For each argument, its position among the cluster's inputs followed by its weights."""


def lower(cluster: Cluster, sizes: Sizes, target: str) -> Lowered:
    """Return the program for these sizes. Any exception of torch-mlir propagates.

    For a TPU the inputs of a call are copied, and the copies are not read again: they are donated, so that results may
    reuse their memory.
    """
    from torch_mlir.extras import fx_decomp_util

    torch_mlirs: Any = fx_decomp_util  # its annotations leave the functions' types open
    table = layered(completed(torch_mlirs.get_decomposition_table()), {torch.ops.aten._to_copy.default: _wrapped})
    program = specialised(cluster, sizes, table, prepare=_prepare)
    given = len(cluster.inputs) if target == "tpu" else 0
    donated = tuple(place for place, position in enumerate(program.fed) if position < given)
    return Lowered(_stablehlo(program.module, is_exact=target != "cpu", donated=donated), program.fed)


def _wrapped(value: torch.Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
    """Convert floats to bytes through wide integers, whose low bits eager keeps: XLA clamps floats to 0 and 255."""
    if dtype != torch.uint8 or not value.dtype.is_floating_point:
        return NotImplemented
    return value.to(torch.int64).to(torch.uint8)


def _prepare(module: fx.GraphModule) -> None:
    bounded(module)
    unrolled(module)
    composites_said(module)


def _stablehlo(module: fx.GraphModule, *, is_exact: bool, donated: Sequence[int]) -> str:
    """Return the text, with large constants inline: XLA does not know resources."""
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
    """Set products to their inputs' own precision: by default a GPU uses tf32, and a TPU bf16."""
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
    """Return torch-mlir's bindings of MLIR, which are untyped."""
    from torch_mlir import ir

    return ir
