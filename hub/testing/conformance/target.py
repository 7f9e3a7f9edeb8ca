"""The backend under examination, loaded, and what it accepts, determined once."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from hub.discovery.registry import load_attribute, registry
from hub.errors import ContractError, type_of
from hub.plugin.backend import Backend, CompileSettings, Executable
from hub.plugin.entry import Entry
from hub.plugin.graph import Cluster
from hub.plugin.probing import verdicts_on
from hub.plugin.table import OperatorTable, Support
from hub.testing.conformance.finding import Finding, judged, not_applicable
from hub.testing.conformance.judge import grant, run
from hub.testing.conformance.programs import PROGRAMS, Program, is_varied, single
from hub.testing.operators import SAMPLES
from hub.verification.ties import order_checked

SETTINGS = CompileSettings(threads=1)
"""One thread: sums have one order, and no pool makes another check wait."""


@dataclass(frozen=True)
class Target:
    """A backend with its registry entry. Nothing here raises until a method calls the backend."""

    entry: Entry
    backend: Backend
    limit_s: float = 600.0
    """Longest time for one examination; processes that a check starts get a share of it."""
    has_hard: bool = True
    """True if operators are also tried on hard values."""

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.entry.name

    @cached_property
    def table(self) -> OperatorTable | None:
        """The backend's operator table; None if it accepts any operator."""
        return table_of(self.entry)

    @cached_property
    def one_operator(self) -> Program | None:
        """A sample call of the first operator whose sample with float values works; None if there is none."""
        names = SAMPLES if self.table is None else (name for name in self.table.rows if name in SAMPLES)
        found = (single(name, position) for name in names for position in range(len(SAMPLES[name])))
        return next((program for program in found if is_varied(program.name) and self.works(program)), None)

    @cached_property
    def main(self) -> Program | None:
        """The first program that works, which most checks examine; None if there is none."""
        return next(self.working(), None)

    def working(self, *, dynamic: bool = False) -> Iterator[Program]:
        """Yield the programs that are accepted, compile and run, one operator last. `support` reports those that fail."""
        yield from (program for program in PROGRAMS.values() if self.works(program, dynamic=dynamic))
        if self.one_operator is not None and self.works(self.one_operator, dynamic=dynamic):
            yield self.one_operator

    def works(self, program: Program, *, dynamic: bool = False) -> bool:
        """Return whether a program is accepted, compiles and runs. Never raise."""
        try:
            cluster, inputs = program.draw(dynamic=dynamic)
            if self.refusal(cluster):
                return False
            run(self.compile(cluster), cluster, inputs)
        except Exception:  # noqa: BLE001 - `support` reports it, no matter what it is
            return False
        return True

    def refusal(self, cluster: Cluster) -> str:
        """Return the reason of the first refused node; "" if all are accepted. Raise ContractError for an invalid verdict.

        Elements of a tuple follow the node that makes it, so they are not queried.
        """
        verdict_on = verdicts_on(self.backend, cluster)
        for node in cluster.nodes:
            if node.target is operator.getitem:
                continue
            answer = order_checked(self.backend, node, verdict_on(node))
            if not isinstance(answer, Support):
                raise ContractError(f"supports() returned {type_of(answer)}, not a Support", backend=self.name)
            if not answer.accepted:
                if not answer.reason.strip():
                    raise ContractError(f"supports() refused {node.target} without a reason", backend=self.name)
                return answer.reason
        return ""

    def is_in_table(self, cluster: Cluster) -> bool:
        """Return whether there is an operator table that contains every node, with its conditions met."""
        nodes = [node for node in cluster.nodes if node.target is not operator.getitem]
        return self.table is not None and all(self.table.supports(node).accepted for node in nodes)

    def compile(self, cluster: Cluster) -> Executable:
        """Compile a cluster. Raise what the backend raises, and ContractError if the result is not callable."""
        executable = cast("Any", self.backend.compile(cluster, SETTINGS))
        if not callable(executable):
            raise ContractError(f"compile() returned {type_of(executable)}, which is not callable", backend=self.name)
        return cast("Executable", executable)


def judged_main(
    check: str, subject: str, target: Target, problems_of: Callable[[Target, Program], Iterator[str]]
) -> tuple[Finding, ...]:
    """Return the finding for the main program: passed if `problems_of` finds nothing."""
    if target.main is None:
        return (not_applicable(check, subject, "no program works"),)
    return (judged(check, subject, problems_of(target, target.main)),)


def table_of(entry: Entry) -> OperatorTable | None:
    """Return the operator table that an entry names. Raise ContractError if it names something else."""
    if not entry.info.operators:
        return None
    table = load_attribute(entry.info.operators)
    if not isinstance(table, OperatorTable):
        raise ContractError(f"{entry.info.operators} is {type_of(table)}, not an OperatorTable", backend=entry.name)
    return table


def load_target(name: str, limit_s: float, *, has_hard: bool = True) -> Target:
    """Load a backend. Raise HubError as the registry does."""
    backend = registry().backend(name)
    entry = registry().entries[name]
    grant(entry.info.max_relative_error)
    return Target(entry, backend, limit_s, has_hard)
