"""Writes a plan as straight-line Python: one line per eager node, one guarded call per cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from hub.capture.pins import alias_chain, owners
from hub.errors import PlanError
from hub.plugin.graph import Graph
from hub.plugin.table import elements, tensors_of
from hub.process.accelerators import accelerators_of
from hub.torch_private import HigherOrderOperator, OperatorBase


@dataclass(frozen=True, slots=True)
class Step:
    """A group of a schedule as the dispatcher sees it."""

    name: str
    backend: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    """Arguments of the cluster; unused for eager steps, whose nodes are written out."""
    outputs: tuple[str, ...] = ()
    is_eager: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """Generated source, with the values of its names, but without the clusters' callables."""

    source: str
    namespace: Mapping[str, Any]


def generate(
    graph: Graph,
    steps: Sequence[Step],
    *,
    timed: bool = False,
    weights: Mapping[str, torch.Tensor] | None = None,
    takes: bool = False,
    released: Container[str] = (),
) -> Program:
    """Generate `run(args)` for a schedule; `args` are the values of the graph's placeholders.

    The namespace still lacks, for each cluster `c0`, the names `c0` (called with the inputs, returns the outputs) and
    `c0_failed` (called with the namespace, the error, the tensors' versions and the inputs, returns the outputs);
    `counts_writes`, which returns whether tensors currently have versions; and, if inputs are mutated, `overlaps` and
    `original`. With `timed`, seconds spent in each step are added up in the list `laps`; steps on accelerators are
    synchronized with `wait_for`.

    `weights` are read in place of the arguments of the same names, except for those that `run` returns, writes to, or
    passes to programs that have plans of their own, which guard them.

    With `takes`, a list of arguments is emptied, so that each is freed after its last use, as a backward's activations are.

    `released` are clusters before which the name `release_openmp` is called.

    Versions, PyTorch's counts of writes, are read before each call. Without them it would be unknown, after a failure,
    whether the executable had written to the inputs that eager would continue from.
    """
    writer = _Writer(graph, steps, timed=timed, weights=weights or {}, takes=takes, released=released)
    return Program(writer.write(), writer.namespace)


def _calls_programs(node: fx.Node) -> bool:
    return isinstance(node.target, HigherOrderOperator)


class _Writer:
    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Step],
        *,
        timed: bool,
        weights: Mapping[str, torch.Tensor],
        takes: bool,
        released: Container[str],
    ) -> None:
        self.takes = takes
        self.graph = graph
        self.steps = steps
        self.timed = timed
        self.released = released
        self.namespace: dict[str, Any] = {}
        self.lines: list[str] = []
        self.late = _late_views(graph)
        # PyTorch counts writes through a view on the weight that it views, not on another tensor of the same memory.
        given_back = {*graph.mutated, *owners(graph.outputs)}
        handed_on = {one.name for node in graph.nodes if _calls_programs(node) for one in node.all_input_nodes}
        self.weights = {name: value for name, value in weights.items() if name not in given_back | handed_on}

    def write(self) -> str:
        for position, step in enumerate(self.steps):
            self._step(position, step)
        body = self._with_deletions(self.lines)
        tail = self._epilogue()
        head = self._prologue("\n".join((*body, *tail)))
        return "\n".join((f"def run(args):  # {self.graph.name}", *_indent((*head, *body, *tail)), ""))

    def _prologue(self, body: str) -> list[str]:
        used = set(re.findall(r"\w+", body))
        lines = ["if overlaps(args):", "    return original(*args)"] if self.graph.mutated else []
        if "is_counted" in used:
            lines.append("versions = is_counted = counts_writes()")
        for position, node in enumerate(self.graph.placeholders):
            name = local_name(node.name)
            if name in used and node.name in self.weights:
                self.namespace[name] = self.weights[node.name]
            elif name in used:
                lines.append(f"{name} = args[{position}]")
        for node in self.graph.module.graph.find_nodes(op="get_attr"):
            if (name := local_name(node.name)) in used:
                self.namespace[name] = getattr(self.graph.module, str(node.target))
        return [*lines, *(["if type(args) is list:", "    args.clear()"] if self.takes else [])]

    def _step(self, position: int, step: Step) -> None:
        if self.timed:
            self.lines.append("start = now()")
        if step.is_eager:
            self.lines += [self._eager(self.graph.by_name[name], {}) for name in step.nodes]
        else:
            self.lines += ["release_openmp()"] if step.name in self.released else []
            self._cluster(step)
        if self.timed:
            if awaited := accelerators_of(tensor for name in step.nodes for tensor in self._tensors_of(name)):
                self.lines.append(f"wait_for({self._literal(awaited, {})})")
            self.lines.append(f"laps[{position}] += now() - start")

    def _tensors_of(self, name: str) -> Iterable[Any]:
        return tensors_of(self.graph.by_name[name])

    def _cluster(self, step: Step) -> None:
        outputs, inputs = tuple(map(local_name, step.outputs)), tuple(map(local_name, step.inputs))
        targets = f"{outputs[0]}," if len(outputs) == 1 else ", ".join(outputs)
        given = ", ".join(inputs)
        values = (self.graph.by_name[name].meta.get("val") for name in step.inputs)
        tensors = [name for name, value in zip(inputs, values, strict=True) if isinstance(value, torch.Tensor)]
        with_error = ", ".join(("globals()", "error", "versions" if tensors else "False", *inputs))
        counts = "".join(f"{name}._version, " for name in tensors).rstrip()
        self.lines += [
            f"try:  # {step.name}: {step.backend}, {len(step.nodes)} nodes",
            *([f"    versions = is_counted and ({counts})"] if tensors else []),
            f"    {targets} = {step.name}({given})",
            "except BaseException as error:",
            f"    {targets} = {step.name}_failed({with_error})",
        ]

    def _eager(self, node: fx.Node, renamed: Mapping[fx.Node, str], name: str | None = None) -> str:
        if node.op != "call_function":
            raise PlanError(f"cannot dispatch a node of kind {node.op}", node=node.name)
        arguments = [self._literal(value, renamed) for value in node.args]
        arguments += [f"{key}={self._literal(value, renamed)}" for key, value in node.kwargs.items()]
        return f"{name or local_name(node.name)} = {self._operator(node.target)}({', '.join(arguments)})"

    def _operator(self, target: Any) -> str:
        name = re.sub(r"\W+", "_", str(target) if isinstance(target, OperatorBase) else target.__name__)
        name = f"op_{name}"
        while self.namespace.setdefault(name, target) is not target:
            name += "_"
        return name

    def _literal(self, value: Any, renamed: Mapping[fx.Node, str]) -> str:
        if isinstance(value, fx.Node):
            return renamed.get(value, local_name(value.name))
        if isinstance(value, (list, tuple)):
            items = [self._literal(item, renamed) for item in elements(value)]
            return f"[{', '.join(items)}]" if isinstance(value, list) else f"({''.join(f'{item}, ' for item in items)})"
        if isinstance(value, dict):
            pairs = (f"{key!r}: {self._literal(item, renamed)}" for key, item in cast("dict[Any, Any]", value).items())
            return f"{{{', '.join(pairs)}}}"
        if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            return repr(value)
        if isinstance(value, slice):
            parts = (self._literal(part, renamed) for part in (value.start, value.stop, value.step))
            return f"slice({', '.join(parts)})"
        name = f"value_{re.sub(r'[^0-9a-zA-Z]+', '_', str(value)).strip('_')[:24]}"
        while name in self.namespace and self.namespace[name] is not value:
            name += "_"
        self.namespace[name] = value
        return name

    def _with_deletions(self, lines: Sequence[str]) -> list[str]:
        """Add `del` after the last use of each value, so that memory is freed as early as eager frees it."""
        kept = {name for line in self._epilogue() for name in _names_in(line)}
        values = {local_name(node.name) for node in self.graph.nodes}
        given = {local_name(node.name) for node in self.graph.placeholders}
        values = (values | given if self.takes else values - given) - kept
        last: dict[str, int] = {}
        for position, line in enumerate(lines):
            for name in _names_in(line) & values:
                last[name] = position
        dying: dict[int, list[str]] = {}
        for name, position in last.items():
            dying.setdefault(position, []).append(name)
        result: list[str] = []
        for position, line in enumerate(lines):
            result.append(line)
            if names := dying.get(position):
                result.append(f"del {', '.join(sorted(names))}")
        return result

    def _epilogue(self) -> list[str]:
        outputs = self.graph.outputs
        lines = [
            f"{local_name(target)}.copy_({self._literal(value, {})})"
            for target, value in zip(self.graph.mutated, outputs, strict=False)
        ]
        renamed: dict[fx.Node, str] = {}
        for chain, target in self.late:
            renamed[chain[-1]] = local_name(target)
            for node in reversed(chain[:-1]):
                if node not in renamed:
                    renamed[node] = f"late_{node.name}"
                    lines.append(self._eager(node, renamed, renamed[node]))
        results = [self._literal(value, renamed) for value in outputs[len(self.graph.mutated) :]]
        return [*lines, f"return ({''.join(f'{result}, ' for result in results)})"]


_OWN = re.compile(
    r"args|run|overlaps|original|versions|is_counted|counts_writes|release_openmp|error|start|now|laps|wait_for|[ce]\d+(_failed)?"
    r"|(op|value|late)_.*"
)
"""Names of the program's own. A node is named after its operator, which may be a user's `mylib::error`."""


def local_name(name: str) -> str:
    """Return the name of a node's value in the program."""
    return f"of_{name}" if _OWN.fullmatch(name) else name


_TEXT = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_KEYWORD = re.compile(r"\b\w+=(?!=)")


def _names_in(line: str) -> set[str]:
    """Return the names that a line of code reads or assigns. A node may be called `tanh`, like an option of `gelu`."""
    code = _KEYWORD.sub("", _TEXT.sub("", line)).partition("#")[0]
    return set(re.findall(r"\w+", code))


def _late_views(graph: Graph) -> list[tuple[list[fx.Node], str]]:
    """Return outputs that are views of a mutated input's new value. They must view the input itself, once written."""
    target_of = dict(zip(graph.outputs, graph.mutated, strict=False))
    chains = [alias_chain(node) for node in graph.outputs[len(graph.mutated) :] if isinstance(node, fx.Node)]
    return [(chain, target_of[chain[-1]]) for chain in chains if chain[-1] in target_of]


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
