"""Checks that one executable with symbolic sizes serves many sizes, or refuses a call with a named error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch

from hub.plugin.backend import Executable
from hub.plugin.entry import Entry
from hub.plugin.graph import Cluster, ScalarSpec, TensorSpec
from hub.plugin.table import is_symbolic
from hub.testing.conformance.draw import Inputs
from hub.testing.conformance.finding import Finding, judged, not_applicable, trouble
from hub.testing.conformance.judge import eager, exact, run, value_problem
from hub.testing.conformance.programs import BATCH, PROGRAMS, Program
from hub.testing.conformance.target import Target
from hub.testing.conformance.trail import at

ONE_OPERATOR = "one operator"
SIZES = (BATCH, 2, 13, 1, 0, BATCH, 64)
"""Sizes in the order in which one executable is called: larger after smaller and vice versa, empty in between."""


def subjects(entry: Entry) -> tuple[str, ...]:
    """Return the programs, or one word if the backend does not claim to support symbolic sizes."""
    return (*PROGRAMS, ONE_OPERATOR) if entry.info.dynamic_shapes else ("sizes",)


def examine(target: Target, subject: str) -> tuple[Finding, ...]:
    """Return the finding for one program."""
    if not target.entry.info.dynamic_shapes:
        return (not_applicable("dynamic", subject, "not claimed: dynamic_shapes=False"),)
    program = target.one_operator if subject == ONE_OPERATOR else PROGRAMS[subject]
    if program is None or not target.works(program, dynamic=True):
        return (not_applicable("dynamic", subject, "refused with symbolic sizes, or see `support`"),)
    return (judged("dynamic", subject, _problems(target, program)),)


def _problems(target: Target, program: Program) -> Iterator[str]:
    cluster, inputs = program.draw(dynamic=True)
    executable = target.compile(cluster)
    symbols = symbols_of(cluster)
    for size in SIZES:
        at(f"{program.name} with size {size}")
        other = with_sizes(cluster, inputs, dict.fromkeys(symbols, size))
        if problem := _problem(executable, cluster, other):
            yield f"{program.name} with size {size}: {problem}"


def _problem(executable: Executable, cluster: Cluster, inputs: Inputs) -> str:
    """Return what is wrong with one call; a size that eager itself refuses is no size of this program."""
    try:
        wanted = eager(cluster, inputs)
    except Exception:  # noqa: BLE001 - an operator may refuse a size with any exception
        return ""
    try:
        got = run(executable, cluster, inputs)
    except Exception as error:  # noqa: BLE001 - anything a plugin raises is the finding
        return trouble(error)
    return value_problem(got, wanted, exact(cluster, inputs))


def symbols_of(cluster: Cluster) -> tuple[Any, ...]:
    """Return the symbols in the sizes of a cluster's inputs, in order of appearance."""
    found: dict[Any, None] = {}
    for spec in cluster.inputs:
        for size in spec.shape if isinstance(spec, TensorSpec) else (spec.value,):
            if is_symbolic(size) and hasattr(size, "node"):
                found |= dict.fromkeys(sorted(size.node.expr.free_symbols, key=str))
    return tuple(found)


def with_sizes(cluster: Cluster, inputs: Inputs, sizes: Mapping[Any, int]) -> Inputs:
    """Return inputs in which each symbol has the given value; resized tensors repeat the values of the original ones."""
    return tuple(_resized(spec, value, sizes) for spec, value in zip(cluster.inputs, inputs, strict=True))


def _resized(spec: TensorSpec | ScalarSpec, value: Any, sizes: Mapping[Any, int]) -> Any:
    if isinstance(spec, ScalarSpec):
        return _number(spec.value, sizes)
    shape = tuple(cast("int", _number(size, sizes)) for size in spec.shape)
    tensor = cast("torch.Tensor", value)
    if shape == tuple(tensor.shape):
        return tensor
    count = torch.Size(shape).numel()
    flat = tensor.reshape(-1)
    if not flat.numel():
        return tensor.new_zeros(shape)
    return flat.repeat(-(-count // flat.numel()))[:count].reshape(shape)


def _number(value: Any, sizes: Mapping[Any, int]) -> Any:
    return int(value.node.expr.subs(sizes)) if is_symbolic(value) and hasattr(value, "node") else value
