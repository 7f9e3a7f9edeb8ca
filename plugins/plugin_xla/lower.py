"""Lowers a cluster to the text of a StableHLO program, by torch-mlir, for sizes that are numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import fx

from hub.graph import Cluster
from hub.lowering.arguments import Sizes, specialised
from hub.lowering.decompositions import completed, composites_said
from hub.lowering.indices import bounded
from hub.lowering.mlir_text import inlined
from hub.lowering.recurrence import unrolled

TO_BACKEND = "builtin.module(func.func(torch-match-quantized-custom-ops),torchdynamo-export-to-torch-backend-pipeline)"
TO_STABLEHLO = "builtin.module(torch-backend-to-stablehlo-backend-pipeline)"
_UNSIGNED_COMPARISON = re.compile(r"(stablehlo\.compare \w+, [^:\n]*, )SIGNED( : \(tensor<(?:[\dx]+x)?(?:i1|ui\d+)>)")
"""torch-mlir 20261001 compares booleans and unsigned numbers as signed ones, which XLA refuses."""


@dataclass(frozen=True)
class Lowered:
    """One function `main` in StableHLO."""

    text: str
    fed: tuple[int, ...]
    """For each argument, its position among the cluster's inputs and, behind these, its weights."""


def lower(cluster: Cluster, sizes: Sizes) -> Lowered:
    """Gives the program for these sizes. Raises whatever torch-mlir raises."""
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    program = specialised(cluster, sizes, completed(get_decomposition_table()), prepare=_prepare)
    return Lowered(_stablehlo(program.module), program.fed)


def _prepare(module: fx.GraphModule) -> None:
    bounded(module)
    unrolled(module)
    composites_said(module)


def _stablehlo(module: fx.GraphModule) -> str:
    """Gives the text, with large constants in place: XLA knows no resources."""
    from torch_mlir import ir
    from torch_mlir.dialects import torch as torch_dialect
    from torch_mlir.extras.fx_importer import FxImporter
    from torch_mlir.passmanager import PassManager

    with ir.Context() as context:
        context.enable_multithreading(False)
        torch_dialect.register_dialect(context)
        importer = FxImporter(context=context)
        importer.import_graph_module(module, func_name="main")
        for passes in (TO_BACKEND, TO_STABLEHLO):
            PassManager.parse(passes).run(importer.module.operation)
        return _UNSIGNED_COMPARISON.sub(r"\1UNSIGNED\2", inlined(str(importer.module)))
