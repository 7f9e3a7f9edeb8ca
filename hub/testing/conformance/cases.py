"""Sample calls of one operator in every form relevant to a backend, each a cluster with eager's results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from hub.plugin.graph import Cluster
from hub.testing.conformance.draw import Drawing, Inputs
from hub.testing.operators import (
    SAMPLES,
    Made,
    Reference,
    Sample,
    case_cluster,
    expected,
    overload_of,
    read_outputs,
    references,
)
from hub.torch_private import pytree

SPREAD: Mapping[str, str] = {
    "arithmetic": "add.Tensor sub.Tensor mul.Tensor div.Tensor pow.Tensor_Scalar addcmul.default lerp.Scalar",
    "functions": "gelu.default silu.default erf.default log1p.default softplus.default hardswish.default round.default",
    "logic": "where.self clamp.default masked_fill.Scalar eq.Tensor logical_and.default isnan.default maximum.default",
    "reductions": "sum.dim_IntList mean.dim var.correction amax.default argmax.default softmax.int logsumexp.default",
    "running": "cumsum.default topk.default sort.default max.dim linalg_vector_norm.default prod.dim_int all.dim",
    "shapes": "permute.default reshape.default expand.default slice.Tensor split.Tensor cat.default roll.default",
    "indices": "gather.default index_select.default embedding.default index.Tensor index_put.default flip.default",
    "products": "linear.default matmul.default bmm.default addmm.default einsum.default baddbmm.default",
    "convolutions": "conv1d.default conv2d.default conv2d.padding conv_transpose2d.input",
    "norms": "layer_norm.default group_norm.default batch_norm.default rms_norm.default",
    "attention": "scaled_dot_product_attention.default lstm.input",
    "pools": "max_pool2d.default avg_pool2d.default _adaptive_avg_pool2d.default upsample_bilinear2d.vec",
    "casts": "to.dtype _to_copy.default full.default arange.start_step one_hot.default tril.default pixel_shuffle.default",
}
"""Operators tried on backends without a table, which accept any. A group is one program: compiling may take seconds."""

_SAMPLES_EACH = 3
_SMALL = (0, 1)
_REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)
"""Exceptions that PyTorch raises for arguments that an operator does not accept."""
_NEVER_WHOLE = ("aten.smooth_l1_loss_backward.default",)
"""Operators whose eager kernels for integers divide by 0 and kill the process with SIGFPE (torch 2.13)."""
_NEVER_RESIZED = (
    # Eager itself divides by a size of 0 and kills the process with SIGFPE (torch 2.13).
    "aten._weight_norm.default",
    "aten._weight_norm_interface.default",
    # Another argument also gives the size, and eager broadcasts instead of complaining: no model calls them this way.
    "aten.select_backward.default",
    "aten.slice_backward.default",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One sample in one form: with or without weights, with fixed or symbolic sizes."""

    overload: str
    sample: Sample
    dynamic: bool = False
    has_weights: bool = False

    def __str__(self) -> str:
        form = ", ".join(word for word, on in (("dynamic", self.dynamic), ("weights", self.has_weights)) if on)
        return f"{self.overload}({self.sample}){f' [{form}]' if form else ''}"

    def build(self) -> tuple[Cluster, Inputs]:
        """Return the cluster and the values of its inputs; with weights, all tensors but the first are constants."""
        constants = range(1, 64) if self.has_weights else ()
        return case_cluster(self.overload, self.sample, dynamic=self.dynamic, constants=constants)


def cases_of(overload: str, *, dynamic: bool) -> Iterator[Case]:
    """Yield every form of every sample of an operator, with symbolic sizes only if `dynamic`."""
    for sample in SAMPLES[overload]:
        count = len(tensors_in(sample))
        for has_weights in (False, True) if count > 1 else (False,):
            for symbolic in (False, True) if dynamic and count else (False,):
                yield Case(overload, sample, symbolic, has_weights)


def small_cases(case: Case) -> Iterator[Case]:
    """Yield a case with its first size set to 0 and to 1, if eager accepts that and returns values."""
    for size in _SMALL:
        sample = None if case.overload in _NEVER_RESIZED else resized(case.sample, size)
        if sample is not None and is_taken(case.overload, sample):
            yield replace(case, sample=sample)


def resized(sample: Sample, size: int) -> Sample | None:
    """Return a sample with the first size of its first tensor changed wherever it occurs; None if no tensor has dims."""
    leaves = _made(sample)
    first = next((made.shape[0] for made in leaves if made.shape), None)
    if first in (None, size) or any(made.fill == "values" for made in leaves):
        return None
    arguments, keywords = pytree.tree_map_only(
        Made,
        lambda made: replace(made, shape=(size, *made.shape[1:])) if made.shape[:1] == (first,) else made,
        (sample.arguments, dict(sample.keywords)),
    )
    return replace(sample, arguments=arguments, keywords=keywords)


def _made(sample: Sample) -> list[Made]:
    return [leaf for leaf in pytree.tree_leaves((sample.arguments, dict(sample.keywords))) if isinstance(leaf, Made)]


def is_taken(overload: str, sample: Sample) -> bool:
    """Return whether eager accepts a call and returns values."""
    if overload in _NEVER_WHOLE and not any(made.dtype.is_floating_point for made in _made(sample)):
        return False
    try:
        arguments, keywords = sample.build()
        with torch.no_grad():
            return bool(read_outputs(overload_of(overload)(*arguments, **keywords), sample))
    except _REFUSALS:
        return False


def is_captured(case: Case) -> bool:
    """Return whether eager accepts a case, and PyTorch predicts the dtypes and shapes of eager's results."""
    if not is_taken(case.overload, case.sample):
        return False
    try:
        cluster, _ = case.build()
    except _REFUSALS:
        return False
    foretold = [(spec.dtype, tuple(spec.shape)) for spec in cluster.outputs]
    return foretold == [(output.dtype, tuple(output.shape)) for output in expected(case.overload, case.sample)]


@cache
def wanted_of(overload: str, sample: Sample) -> tuple[tuple[torch.Tensor, ...], tuple[Reference | None, ...]]:
    """Return eager's outputs and their float64 references."""
    return expected(overload, sample), references(overload, sample)


def tensors_in(sample: Sample) -> list[torch.Tensor]:
    """Return the tensors among a sample's arguments."""
    return [leaf for leaf in pytree.tree_leaves(sample.build()) if isinstance(leaf, torch.Tensor)]


def operators_of(group: str) -> tuple[str, ...]:
    """Return the names of the operators of a group."""
    return tuple(f"aten.{name}" for name in SPREAD[group].split())


def spread_of(group: str) -> tuple[Case, ...]:
    """Return the first samples of each operator of a group."""
    return tuple(Case(name, sample) for name in operators_of(group) for sample in SAMPLES[name][:_SAMPLES_EACH])


def joined(cases: Sequence[Case]) -> tuple[Cluster, Inputs]:
    """Return several cases as one cluster, whose inputs are tensors and whose outputs are those of each case in turn."""
    drawing = Drawing()
    outputs: list[torch.fx.Node] = []
    for case in cases:
        leaves, structure = pytree.tree_flatten(case.sample.build())
        nodes = [drawing.input(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        arguments, keywords = pytree.tree_unflatten(nodes, structure)
        call = drawing.call(case.overload, *arguments, **keywords)
        outputs += [drawing.owned(node) for node in _read(drawing, call, case.sample)]
    return drawing.cluster("spread", outputs), drawing.inputs


def joined_answer(cases: Sequence[Case]) -> tuple[tuple[torch.Tensor, ...], tuple[Reference | None, ...]]:
    """Return eager's outputs and references for `joined`."""
    outputs: list[torch.Tensor] = []
    found: list[Reference | None] = []
    for case in cases:
        wanted, reference = wanted_of(case.overload, case.sample)
        outputs += wanted
        found += [reference[index] if index < len(reference) else None for index in range(len(wanted))]
    return tuple(outputs), tuple(found)


def _read(drawing: Drawing, call: torch.fx.Node, sample: Sample) -> list[torch.fx.Node]:
    value = call.meta["val"]
    if isinstance(value, torch.Tensor):
        return [call]
    read = sample.outputs if sample.outputs is not None else range(len(value))
    return [drawing.element(call, position) for position in read if isinstance(value[position], torch.Tensor)]
