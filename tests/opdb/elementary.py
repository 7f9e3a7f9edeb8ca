"""How exact a compiler of elementary operators is, element by element: on the samples of PyTorch's operator database.

Tighter than `outcome`, which measures against the largest value of a tensor: whole numbers and bools must be eager's to the
bit, and floats lie within 2 units in the last place of float64's result for each operator, or as near as the worst that
eager gives in the same tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

from hub.errors import CaptureError, PlanError
from hub.plugin.backend import Backend, CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import run, whole_cluster
from tests.opdb.calls import NARROW, Call, Cell, operators
from tests.opdb.findings import TOGETHER

ULPS = 2.0
"""Units in the last place that each operator may be off."""
DTYPES = ("float32", "int64", "bool")
MORE = ("where", "clamp", "addcmul", "addcdiv", "lerp", "masked_fill")
"""Elementwise operators that PyTorch does not describe as functions of one or two arguments."""


def cells(table: Collection[str]) -> Iterator[Cell]:
    """Yield every elementwise operator that a table names ("aten.exp.default"), in each dtype that it has."""
    known = {row.split(".")[1] for row in table}
    for name, info in operators().items():
        is_elementwise = isinstance(info, (UnaryUfuncInfo, BinaryUfuncInfo)) or name in MORE
        if is_elementwise and info.aten_name in known:
            for dtype in DTYPES:
                if getattr(torch, dtype) in info.supported_dtypes("cpu"):
                    yield Cell(name, dtype, "inference")


class _Joined(torch.nn.Module):
    """Some calls as one program of their tensors."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        parts = [pytree.tree_flatten(call.arguments) for call in calls]
        self.tensors = [leaf.detach() for leaves, _ in parts for leaf in leaves if isinstance(leaf, torch.Tensor)]
        steps: list[Callable[[Iterator[torch.Tensor]], Any]] = []
        for call, (leaves, spec) in zip(calls, parts, strict=True):
            steps.append(_step(call, leaves, spec))
        self.steps = steps

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = iter(tensors)
        found = [step(left) for step in self.steps]
        return tuple(leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor))


def _step(call: Call, leaves: Sequence[Any], spec: Any) -> Callable[[Iterator[torch.Tensor]], Any]:
    def step(left: Iterator[torch.Tensor]) -> Any:
        filled = [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return call.function(*args, **kwargs)

    return step


def judged(backend: Backend, calls: Sequence[Call]) -> tuple[int, list[str]]:
    """Return how many calls a backend supports entirely, and which of its results are less exact than required."""
    taken, wrong = 0, list[str]()
    for start in range(0, len(calls), TOGETHER):
        n_taken, problems = _judged(backend, calls[start : start + TOGETHER])
        taken += n_taken
        wrong += problems
    return taken, wrong


def _judged(backend: Backend, calls: Sequence[Call]) -> tuple[int, list[str]]:
    program = _Joined(calls)
    try:
        cluster, inputs = whole_cluster(program, program.tensors)
    except (CaptureError, PlanError, RuntimeError, ValueError, TypeError):
        cluster = None
    if cluster is None or not all(backend.supports(node).accepted for node in cluster.nodes):
        halves = (calls[: len(calls) // 2], calls[len(calls) // 2 :]) if len(calls) > 1 else ()
        found = [_judged(backend, half) for half in halves]
        return sum(taken for taken, _ in found), [text for _, problems in found for text in problems]
    got = run(backend.compile(cluster, CompileSettings(threads=1)), cluster, inputs)
    with torch.no_grad():
        wanted = cluster.module(*inputs)
        exact = _exact(cluster, inputs)
    names = f"{calls[0]}" if len(calls) == 1 else f"{calls[0]} to {calls[-1]}"
    problems = [
        f"{names}: output {at}: {problem}"
        for at, (mine, eager, wide) in enumerate(zip(got, wanted, exact, strict=True))
        if (problem := too_far(mine, eager, wide, ULPS * _roundings(cluster, at)))
    ]
    return len(calls), problems


def _exact(cluster: Cluster, inputs: Sequence[Any]) -> Sequence[Any]:
    """Return what the cluster returns in float64; eager's own results if it has no such form."""
    try:
        return _Widened(cluster.module).run(*(_wide(value) for value in inputs))
    except Exception:  # noqa: BLE001 - whatever eager does not do in float64
        return cluster.module(*inputs)


class _Widened(torch.fx.Interpreter):
    """An interpreter that runs a program with float64 in place of float32."""

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op != "call_function":
            return _wide(super().run_node(n)) if n.op == "get_attr" else super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        given = pytree.tree_map(_wide_dtype, (args, kwargs))
        return n.target(*given[0], **given[1])  # pyright: ignore[reportCallIssue]


def _wide_dtype(value: Any) -> Any:
    return NARROW.get(value, value) if isinstance(value, torch.dtype) else value


def _wide(value: Any) -> Any:
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in NARROW
    return value.to(NARROW[value.dtype]) if is_narrow else value


def _roundings(cluster: Cluster, output: int) -> int:
    """Return how many operators an output depends on, at least one."""
    (results,) = (node for node in cluster.module.graph.nodes if node.op == "output")
    stack, seen = [results.args[0][output]], set[torch.fx.Node]()
    while stack:
        node = stack.pop()
        if node not in seen and node.op == "call_function":
            seen.add(node)
            stack += node.all_input_nodes
    return max(1, len(seen))


def too_far(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, ulps: float) -> str:
    """Return what of a result is off by more than some units in the last place, and by more than eager at its worst."""
    if (got.dtype, got.shape) != (eager.dtype, eager.shape):
        return f"{got.dtype} {list(got.shape)}, {eager.dtype} {list(eager.shape)} expected"
    if not eager.is_floating_point():
        return _worst(got, eager, (got != eager).double())
    same = (got == eager) | (got.isnan() & eager.isnan())
    numbers = eager.isfinite() & exact.isfinite()
    if bool((~numbers & ~same).any()) or bool((numbers & ~got.isfinite()).any()):
        return f"NaN or infinity: {_worst(got, eager, ((~numbers & ~same) | (numbers & ~got.isfinite())).double())}"
    signs = (eager == 0) & (got == 0) & (eager.signbit() != got.signbit())
    if bool(signs.any()):
        return f"sign of zero: {_worst(got, eager, signs.double())}"
    unit = _unit(exact.double(), eager.dtype)
    own = torch.where(numbers, (eager.double() - exact).abs() / unit, 0.0)
    off = torch.where(numbers & ~same, (got.double() - exact).abs() / unit, 0.0)
    allowed = max(ulps, float(own.max()) if own.numel() else 0.0)
    return _worst(got, eager, (off - allowed).clamp(min=0.0), f", {float(off.max()):.3g} units off" if off.numel() else "")


def _unit(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance between neighbouring numbers of a dtype around each value."""
    kind = torch.finfo(dtype)
    exponent = torch.frexp(values.abs().clamp(min=kind.tiny)).exponent - 1
    return kind.eps * torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent)


def _worst(got: torch.Tensor, eager: torch.Tensor, badness: torch.Tensor, more: str = "") -> str:
    if not badness.numel() or not math.isfinite(float(badness.max())) or not float(badness.max()):
        return ""
    index = tuple(int(at) for at in torch.unravel_index(badness.argmax(), badness.shape))
    count = int((badness > 0).sum())
    values = f"{got[index].item()!r}, eager {eager[index].item()!r}"
    return f"{count} of {badness.numel()} wrong; at {list(index)} {values}{more}"
