"""Every operator that a backend declares compiles, runs and is right, on every sample call that the backend accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from hub.backend import Backend
from hub.graph import Cluster
from hub.registry import Entry, load_attribute, registry
from hub.support import OperatorTable, Support
from hub.testing.operators import (
    SAMPLES,
    Reference,
    Sample,
    case_cluster,
    check_close,
    expected,
    overload_of,
    read_outputs,
    references,
)
from hub.testing.single import compile_and_run, run, whole_cluster

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")
"""Inductor's own imports use torch.jit."""

WITH_TABLE = {name: entry for name, entry in registry().entries.items() if entry.status.accepted and entry.info.operators}
WITHOUT_TABLE = [name for name in registry().available() if not registry().entries[name].info.operators]


@cache
def table_of(backend: str) -> OperatorTable:
    """Gives a backend's operator table."""
    return load_attribute(WITH_TABLE[backend].info.operators)


DECLARED = [(backend, overload) for backend in WITH_TABLE for overload in sorted(table_of(backend).rows)]

every_declared = pytest.mark.parametrize(("backend", "overload"), DECLARED, ids=[" ".join(pair) for pair in DECLARED])


@dataclass(frozen=True)
class Case:
    """One sample in one form: with weights or without, with fixed sizes or symbolic ones."""

    overload: str
    sample: Sample
    dynamic: bool
    has_weights: bool

    def __str__(self) -> str:
        form = ", ".join(word for word, on in (("dynamic", self.dynamic), ("weights", self.has_weights)) if on)
        return f"{self.overload}({self.sample}){f' [{form}]' if form else ''}"

    def build(self) -> tuple[Cluster, tuple[Any, ...]]:
        """Gives the cluster and the values of its inputs; with weights, all tensors but the first are constants."""
        return case_cluster(
            self.overload, self.sample, dynamic=self.dynamic, constants=range(1, 64) if self.has_weights else ()
        )


def cases_of(entry: Entry, overload: str) -> Iterator[Case]:
    """Gives every form of every sample that makes sense for a backend."""
    for sample in SAMPLES[overload]:
        n_tensors = sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(sample.build()))
        for has_weights in (False, True) if n_tensors > 1 else (False,):
            for dynamic in (False, True) if entry.info.dynamic_shapes and n_tensors else (False,):
                yield Case(overload, sample, dynamic, has_weights)


def verdict(backend: Backend, cluster: Cluster) -> Support:
    """Gives the backend's verdict on the one operator of a cluster; tuple elements follow their producer."""
    return backend.supports(cluster.nodes[0])


def failure_of(backend: Backend, case: Case, cluster: Cluster, inputs: tuple[Any, ...]) -> str | None:
    """Compiles and runs an accepted case; gives what went wrong, or None."""
    wanted, reference = wanted_of(case.overload, case.sample)
    before = [value.clone() for value in inputs if isinstance(value, torch.Tensor)]
    try:
        executable, got = compile_and_run(backend, cluster, inputs)
        check_close(got, wanted, reference, has_values=case.sample.has_values)
        check_close(run(executable, cluster, inputs), wanted, reference, has_values=case.sample.has_values)
        check_close([value for value in inputs if isinstance(value, torch.Tensor)], before)
    except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the finding
        return f"{case}: {type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"
    except AssertionError as error:
        return f"{case}: {error}"
    return None


@cache
def wanted_of(overload: str, sample: Sample) -> tuple[tuple[torch.Tensor, ...], tuple[Reference | None, ...]]:
    """Gives eager's outputs and their float64 references."""
    return expected(overload, sample), references(overload, sample)


@every_declared
def test_declared_operators_have_samples(backend: str, overload: str) -> None:
    """Each operator of a table has sample calls, without which nobody would know whether it is right."""
    assert SAMPLES.get(overload), f"{overload} has no samples in hub.testing.operators"


@every_declared
def test_accepted_samples_are_right(backend: str, overload: str) -> None:
    """An accepted sample compiles, runs twice, changes no input and is as exact as eager; a refusal says why."""
    entry, loaded = WITH_TABLE[backend], registry().backend(backend)
    failures: list[str] = []
    n_accepted = 0
    for case in cases_of(entry, overload):
        cluster, inputs = case.build()
        support = verdict(loaded, cluster)
        assert support.accepted or support.reason
        if support.accepted:
            n_accepted += 1
            failures += filter(None, [failure_of(loaded, case, cluster, inputs)])
    assert not failures, "\n".join(failures)
    assert n_accepted, f"{backend} declares {overload} but refuses every sample of it"


@pytest.mark.parametrize("backend", WITH_TABLE)
def test_undeclared_operators_are_refused_with_a_reason(backend: str) -> None:
    """An operator outside a table is refused, with its name in the reason."""
    loaded = registry().backend(backend)
    for overload in sorted(set(SAMPLES) - set(table_of(backend).rows)):
        cluster, _ = case_cluster(overload, SAMPLES[overload][0])
        support = verdict(loaded, cluster)
        assert not support.accepted, f"{overload} is accepted but not declared"
        assert overload in support.reason


# --- Backends that take any operator: a spread, several operators to one program, because compiling takes seconds -----

SPREAD = {
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


class Calls(torch.nn.Module):
    """Several operator calls as one program; tensors are its inputs."""

    def __init__(self, calls: Sequence[tuple[str, Sample]]) -> None:
        super().__init__()
        self.calls = [(overload_of(overload), sample) for overload, sample in calls]
        self.leaves, self.structure = pytree.tree_flatten([sample.build() for _, sample in calls])

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in order."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        results: list[torch.Tensor] = []
        for (target, sample), (arguments, keywords) in zip(
            self.calls, pytree.tree_unflatten(leaves, self.structure), strict=True
        ):
            outputs = read_outputs(target(*arguments, **keywords), sample)
            results += [output.clone() for output in outputs]  # a view of an input would be left to eager
        return results


def spread_of(group: str) -> list[tuple[str, Sample]]:
    """Gives the first three samples of each operator of a group."""
    names = [f"aten.{name}" for name in SPREAD[group].split()]
    return [(name, sample) for name in names for sample in SAMPLES[name][:3]]


@pytest.mark.parametrize("group", SPREAD)
@pytest.mark.parametrize("backend", WITHOUT_TABLE)
def test_any_operator_means_these_too(backend: str, group: str) -> None:
    """A backend without a table computes a spread of operators as exactly as eager."""
    loaded = registry().backend(backend)
    calls = spread_of(group)
    program = Calls(calls)
    cluster, inputs = whole_cluster(program, program.tensors)
    refusals = [support.reason for node in cluster.nodes if not (support := loaded.supports(node)).accepted]
    assert not refusals
    _, got = compile_and_run(loaded, cluster, inputs)
    wanted = [tensor for call in calls for tensor in wanted_of(*call)[0]]
    reference = [entry for call in calls for entry in _padded(*wanted_of(*call))]
    check_close(got, wanted, reference)


def _padded(wanted: Sequence[torch.Tensor], reference: Sequence[Reference | None]) -> list[Reference | None]:
    return [reference[index] if index < len(reference) else None for index in range(len(wanted))]
