"""Lowers a cluster to a Relax module: `main`, which every call runs, `bind`, which runs once, and a kernel for each stage.

The operators are taken apart by the core (`hub.toolkit`), so that their meaning is PyTorch's; what TVM is given are loops.
Its own PyTorch frontend is not used: README.md says what was found.
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
"""Up to which what follows from weights is kept, even where it is larger than they are."""


@dataclass(frozen=True)
class Names:
    """What the functions of a program take, by name: inputs as i0, i1, ..., numbers likewise, weights as weight0, ..."""

    main: tuple[str, ...]
    """Behind the sizes."""
    bind: tuple[str, ...]
    """Weights."""
    bound: tuple[str, ...]
    """What `bind` gives, and `main` takes behind the others; without any there is no such function."""


@dataclass(frozen=True)
class Facts:
    """What a call needs to know beside machine code."""

    names: Names
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
    """Return a cluster's Relax module. Raises CompileError for what has no rule or expression."""
    lowered = lower(cluster)
    outputs = simplified(lowered.outputs, in_order(lowered.outputs))
    builder = _Builder(tuple(symbol_texts(cluster)), is_parallel=is_parallel)
    module, names = builder.built(staged(outputs), outputs, lowered.weights.keys())
    return Program(module, facts_of(cluster, names))


def facts_of(cluster: Cluster, names: Names) -> Facts:
    """Return what a call needs to know of a cluster whose program takes arguments of these names."""
    symbols = symbol_texts(cluster)
    texts = {symbol: f"({text})" for symbol, text in symbols.items()}
    shapes = tuple(_shape_text(spec, texts) for spec in cluster.outputs)
    orders = tuple(inverse(memory_order(spec)) for spec in cluster.outputs)
    return Facts(names, tuple(symbols.values()), tuple(zip(shapes, orders, strict=True)))


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
        """What stands for each tensor in the function that is being made."""
        self.kernels: dict[Tensor, Kernel] = {}

    def built(self, stages: Stages, outputs: Sequence[Tensor], weights: Collection[str]) -> tuple[Any, Names]:
        """Return the module, and what its functions take."""
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
        """Return what follows from weights alone, or from nothing; results that leave are made anew.

        What is larger than all that it is made of would cost the memory that small weights are there to save.
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
        """Return tensors with what they read from outside in front of them."""
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
    """Return a tensor's bytes; of symbolic sizes more than anybody keeps."""
    count = product(tensor.shape)
    return count * getattr(torch, MEMORY[tensor.dtype]).itemsize if isinstance(count, int) else 1 << 62


def _by_name(kept: Iterable[Tensor]) -> dict[str, Source]:
    """Return what comes from outside, once each: a weight may be read as several sources of one name."""
    return {tensor.name: tensor for tensor in kept if isinstance(tensor, Source)}
