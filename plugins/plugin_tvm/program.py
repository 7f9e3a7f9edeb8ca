"""Lowers a cluster to a Relax module: one function `main` over inputs and weights, and a kernel for each stage.

The operators are taken apart by the core (`hub.lowering`), so that their meaning is PyTorch's; what TVM is given are loops.
Its own PyTorch frontend is not used: README.md says what was found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hub.fusion.reading import in_order
from hub.fusion.simplify import simplified
from hub.graph import Cluster, TensorSpec
from hub.lowering.cluster import lower
from hub.lowering.layout import inverse, memory_order
from hub.lowering.sizes import Size, python_text, size_of
from hub.lowering.symbols import symbol_texts
from hub.lowering.tensors import Reshape, Source, Tensor
from plugin_tvm.functions import MEMORY
from plugin_tvm.kernels import kernel_of
from plugin_tvm.sizes import Sizes
from plugin_tvm.staging import Stages, root_of, staged

MAIN = "main"


@dataclass(frozen=True)
class Facts:
    """What a call needs to know beside machine code."""

    arguments: tuple[str, ...]
    """Names of what `main` takes behind the sizes: inputs as i0, i1, ..., numbers likewise, weights as weight0, ..."""
    sizes: tuple[str, ...]
    """Python texts over inputs that give the sizes, which `main` takes first; without any it takes none."""
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """For each output, the Python text of its shape in memory, and the dims in the order that the cluster wants."""


@dataclass(frozen=True)
class Program:
    """A cluster in Relax."""

    module: Any
    facts: Facts


def program_of(cluster: Cluster, *, is_parallel: bool) -> Program:
    """Gives a cluster's Relax module. Raises CompileError for what has no rule or expression."""
    lowered = lower(cluster)
    outputs = simplified(lowered.outputs, in_order(lowered.outputs))
    builder = _Builder(tuple(symbol_texts(cluster)), is_parallel=is_parallel)
    module, arguments = builder.built(staged(outputs), outputs)
    return Program(module, facts_of(cluster, arguments))


def facts_of(cluster: Cluster, arguments: tuple[str, ...]) -> Facts:
    """Gives what a call needs to know of a cluster whose program takes some arguments."""
    symbols = symbol_texts(cluster)
    texts = {symbol: f"({text})" for symbol, text in symbols.items()}
    shapes = tuple(_shape_text(spec, texts) for spec in cluster.outputs)
    orders = tuple(inverse(memory_order(spec)) for spec in cluster.outputs)
    return Facts(arguments, tuple(symbols.values()), tuple(zip(shapes, orders, strict=True)))


def _shape_text(spec: TensorSpec, texts: Mapping[Any, str]) -> str:
    sizes = (python_text(size_of(spec.shape[dim]), texts) for dim in memory_order(spec))
    return f"({''.join(size + ', ' for size in sizes)})"


class _Builder:
    """Makes one Relax module."""

    def __init__(self, shown: Sequence[Size], *, is_parallel: bool) -> None:
        self.shown = shown
        self.is_parallel = is_parallel
        self.sizes = Sizes(shown)
        self.values: dict[Tensor, Any] = {}

    def built(self, stages: Stages, outputs: Sequence[Tensor]) -> tuple[Any, tuple[str, ...]]:
        """Gives the module, and the names of the arguments behind the sizes."""
        from tvm import relax

        sources = _by_name(stages.kept)
        parameters = [relax.Var(name, self._type(source)) for name, source in sources.items()]
        for tensor in stages.kept:
            if isinstance(tensor, Source):
                self.values[tensor] = parameters[list(sources).index(tensor.name)]
        builder = relax.BlockBuilder()
        with builder.function(MAIN, [*self._sizes(), *parameters]):
            with builder.dataflow():
                for tensor in stages.kept:
                    if not isinstance(tensor, Source):
                        self.values[tensor] = self._emitted(tensor, stages, builder)
                found = builder.emit_output(relax.Tuple([self.values[root_of(output)] for output in outputs]))
            builder.emit_func_output(found)
        return builder.get(), tuple(sources)

    def _sizes(self) -> list[Any]:
        from tvm import relax

        variables = list(self.sizes.variables.values())
        return [relax.Var("sizes", relax.ShapeType(variables))] if variables else []

    def _type(self, tensor: Tensor) -> Any:
        from tvm import relax

        return relax.TensorType(self.sizes.shape(tensor.shape), MEMORY[tensor.dtype])

    def _emitted(self, tensor: Tensor, stages: Stages, builder: Any) -> Any:
        from tvm import relax

        if isinstance(tensor, Reshape):
            shape = relax.ShapeExpr(self.sizes.shape(tensor.shape))
            return builder.emit(relax.op.reshape(self.values[tensor.source], shape))
        kernel = kernel_of(tensor, stages.kept.__contains__, stages.numbers, self.shown, is_parallel=self.is_parallel)
        name = builder.add_func(kernel.function, type(tensor).__name__.lower())
        arguments = [self.values[source] for source in kernel.reads]
        variables = [self.sizes.variables[size] for size in kernel.sizes]
        return builder.emit(relax.call_tir(name, [*arguments, *variables], self._type(tensor)))


def _by_name(kept: Mapping[Tensor, None]) -> dict[str, Source]:
    """Gives what comes from outside, once each: a weight may be read as several sources of one name."""
    return {tensor.name: tensor for tensor in kept if isinstance(tensor, Source)}
