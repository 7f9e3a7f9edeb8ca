"""Lowers a cluster to a Relax module: `main`, run by every call, `bind`, run once, and a kernel for each stage.

The core (`hub.toolkit`) decomposes the operators, so that they have PyTorch's semantics; TVM receives loops. Its own
PyTorch frontend is not used: README.md lists the findings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hub.plugin import Cluster, TensorSpec
from hub.toolkit.cluster import lower
from hub.toolkit.layout import inverse, memory_order
from hub.toolkit.reading import in_order
from hub.toolkit.simplify import simplified
from hub.toolkit.sizes import Size, product, python_text, size_of
from hub.toolkit.symbols import symbol_texts
from hub.toolkit.tensors import Reshape, Source, Tensor
from plugin_tvm.functions import MEMORY
from plugin_tvm.kernels import Kernel, kernel_of
from plugin_tvm.sizes import Sizes
from plugin_tvm.staging import Stages, root_of, staged

MAIN = "main"
BIND = "bind"
SMALL_BYTES = 1 << 20
"""Bytes up to which a result of weights alone is kept, even if it is larger than the weights."""


@dataclass(frozen=True)
class Names:
    """Names of the arguments of a program's functions: inputs and numbers are i0, i1, ..., weights are weight0, ..."""

    main: tuple[str, ...]
    """Arguments of `main` after the sizes."""
    bind: tuple[str, ...]
    """Arguments of `bind`: weights."""
    bound: tuple[str, ...]
    """Results of `bind`, which `main` takes after its other arguments; if empty, there is no `bind`."""


@dataclass(frozen=True)
class Facts:
    """Facts about a program that a call needs, other than machine code."""

    names: Names
    sizes: tuple[str, ...]
    """Python expressions over inputs for the sizes, which are the first arguments of `main`; may be empty."""
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """For each output, the Python expression of its shape in memory, and the dims in the cluster's order."""


@dataclass(frozen=True)
class Program:
    """A cluster in Relax."""

    module: Any
    facts: Facts


def program_of(cluster: Cluster, *, is_parallel: bool) -> Program:
    """Return a cluster's Relax module. Raise CompileError for a node without rule or expression."""
    lowered = lower(cluster)
    outputs = simplified(lowered.outputs, in_order(lowered.outputs))
    builder = _Builder(tuple(symbol_texts(cluster)), is_parallel=is_parallel)
    module, names = builder.built(staged(outputs), outputs, lowered.weights.keys())
    return Program(module, facts_of(cluster, names))


def facts_of(cluster: Cluster, names: Names) -> Facts:
    """Return the facts that a call needs about a cluster whose program has arguments of these names."""
    symbols = symbol_texts(cluster)
    texts = {symbol: f"({text})" for symbol, text in symbols.items()}
    shapes = tuple(_shape_text(spec, texts) for spec in cluster.outputs)
    orders = tuple(inverse(memory_order(spec)) for spec in cluster.outputs)
    return Facts(names, tuple(symbols.values()), tuple(zip(shapes, orders, strict=True)))


def _shape_text(spec: TensorSpec, texts: Mapping[Any, str]) -> str:
    sizes = (python_text(size_of(spec.shape[dim]), texts) for dim in memory_order(spec))
    return f"({''.join(size + ', ' for size in sizes)})"


class _Builder:
    """The builder of one Relax module."""

    def __init__(self, shown: Sequence[Size], *, is_parallel: bool) -> None:
        self.shown = shown
        self.is_parallel = is_parallel
        self.sizes = Sizes(shown)
        self.values: dict[Tensor, Any] = {}
        """Relax variables of tensors in the function that is being built."""
        self.kernels: dict[Tensor, Kernel] = {}

    def built(self, stages: Stages, outputs: Sequence[Tensor], weights: Collection[str]) -> tuple[Any, Names]:
        """Return the module, and the names of its functions' arguments."""
        from plugin_tvm.library import relax

        for tensor in stages.kept:
            if not isinstance(tensor, (Source, Reshape)):
                self.kernels[tensor] = kernel_of(
                    tensor, stages.kept.__contains__, stages.numbers, self.shown, is_parallel=self.is_parallel
                )
        roots = [root_of(output) for output in outputs]
        once = self._known_once(stages, roots, weights)
        always = self._with_sources(
            [tensor for tensor in stages.kept if not isinstance(tensor, Source) and tensor not in once]
        )
        read = {source for tensor in always for source in self._reads(tensor)}
        bound = {f"bound{place}": tensor for place, tensor in enumerate(tensor for tensor in once if tensor in read)}
        builder = relax.BlockBuilder()
        bind: Mapping[str, Source] = {}
        if bound:
            first = self._with_sources(list(once))
            bind = _by_name(first)
            self._function(BIND, builder, bind, {}, first, list(bound.values()))
        sources = _by_name(always)
        self._function(MAIN, builder, sources, bound, always, roots)
        return builder.get(), Names(tuple(sources), tuple(bind), tuple(bound))

    def _known_once(self, stages: Stages, roots: Collection[Tensor], weights: Collection[str]) -> dict[Tensor, None]:
        """Return tensors that depend on weights alone, or on nothing; results of the cluster are computed at every call.

        A tensor larger than all its sources is excluded: keeping it would cost the memory that small weights save.
        """
        found: dict[Tensor, None] = {}
        for tensor in stages.kept:
            reads = self._reads(tensor)
            is_fixed = tensor not in self.kernels or not self.kernels[tensor].sizes
            if isinstance(tensor, Source) or tensor in roots or not is_fixed:
                continue
            if _nbytes(tensor) <= max(sum(map(_nbytes, reads)), SMALL_BYTES) and all(
                source in found or (isinstance(source, Source) and source.name in weights) for source in reads
            ):
                found[tensor] = None
        return found

    def _with_sources(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors, preceded by the sources that they read."""
        read = (source for tensor in tensors for source in self._reads(tensor) if isinstance(source, Source))
        return [*dict.fromkeys(read), *tensors]

    def _reads(self, tensor: Tensor) -> tuple[Tensor, ...]:
        if isinstance(tensor, Reshape):
            return (tensor.source,)
        return self.kernels[tensor].reads if tensor in self.kernels else ()

    def _function(
        self,
        name: str,
        builder: Any,
        sources: Mapping[str, Source],
        bound: Mapping[str, Tensor],
        tensors: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> None:
        from plugin_tvm.library import relax

        parameters = {given: relax.Var(given, self._type(tensor)) for given, tensor in {**sources, **bound}.items()}
        self.values = {tensor: parameters[given] for given, tensor in bound.items()}
        self.values |= {tensor: parameters[tensor.name] for tensor in tensors if isinstance(tensor, Source)}
        with builder.function(name, [*(self._sizes() if name == MAIN else ()), *parameters.values()]):
            with builder.dataflow():
                for tensor in tensors:
                    if not isinstance(tensor, Source):
                        self.values[tensor] = self._emitted(tensor, builder)
                found = builder.emit_output(relax.Tuple([self.values[result] for result in results]))
            builder.emit_func_output(found)

    def _sizes(self) -> list[Any]:
        from plugin_tvm.library import relax

        variables = list(self.sizes.variables.values())
        return [relax.Var("sizes", relax.ShapeType(variables))] if variables else []

    def _type(self, tensor: Tensor) -> Any:
        from plugin_tvm.library import relax

        return relax.TensorType(self.sizes.shape(tensor.shape), MEMORY[tensor.dtype])

    def _emitted(self, tensor: Tensor, builder: Any) -> Any:
        from plugin_tvm.library import relax

        if isinstance(tensor, Reshape):
            shape = relax.ShapeExpr(self.sizes.shape(tensor.shape))
            return builder.emit(relax.op.reshape(self.values[tensor.source], shape))
        kernel = self.kernels[tensor]
        name = builder.add_func(kernel.function, type(tensor).__name__.lower())
        arguments = [self.values[source] for source in kernel.reads]
        variables = [self.sizes.variables[size] for size in kernel.sizes]
        return builder.emit(relax.call_tir(name, [*arguments, *variables], self._type(tensor)))


def _nbytes(tensor: Tensor) -> int:
    """Return a tensor's size in bytes; for symbolic sizes, more than any limit."""
    count = product(tensor.shape)
    return count * getattr(torch, MEMORY[tensor.dtype]).itemsize if isinstance(count, int) else 1 << 62


def _by_name(kept: Iterable[Tensor]) -> dict[str, Source]:
    """Return sources by name, once each: several sources may have the name of one weight."""
    return {tensor.name: tensor for tensor in kept if isinstance(tensor, Source)}
