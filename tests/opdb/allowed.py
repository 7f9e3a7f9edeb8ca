"""The list of sample calls that may differ from eager: `aot_eager` fails on them too. See allowed.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests.opdb.calls import DTYPES, Call
from tests.opdb.findings import Finding

FILE = Path(__file__).with_name("allowed.toml")


@dataclass(frozen=True, slots=True)
class Entry:
    """Sample calls of one operator that may differ, and why."""

    operator: str
    reason: str
    dtypes: tuple[str, ...]
    modes: tuple[str, ...]
    samples: tuple[int, ...] | None
    """None means all."""

    def covers(self, call: Call) -> bool:
        """Return True if the entry is about this call."""
        cell = call.cell
        return (
            (cell.operator, cell.dtype in self.dtypes, cell.mode in self.modes) == (self.operator, True, True)
            and (self.samples is None or call.index in self.samples)
        )  # fmt: skip


@cache
def entries() -> tuple[Entry, ...]:
    """Return the list for this version of PyTorch. Raise ValueError for an entry without a reason, or for no dtype."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return tuple(map(_entry, table.get("allowed", ())))


def _entry(row: dict[str, Any]) -> Entry:
    entry = Entry(
        operator=row["operator"],
        reason=row["reason"].strip(),
        dtypes=tuple(row.get("dtypes", DTYPES)),
        modes=tuple(row.get("modes", ("inference", "training"))),
        samples=tuple(row["samples"]) if "samples" in row else None,
    )
    if not entry.reason or not set(entry.dtypes) <= set(DTYPES) or not set(entry.modes) <= {"inference", "training"}:
        raise ValueError(f"{FILE.name}: the entry for {entry.operator} lacks a reason, or names no dtype or mode of ours")
    return entry


def is_listed(call: Call) -> bool:
    """Return True if a call is on the list."""
    return any(entry.covers(call) for entry in entries())


def is_made_for_this_torch() -> bool:
    """Return True if the list was checked with this version of PyTorch (2.13, say): others may fail on fewer calls."""
    made_with = tomllib.loads(FILE.read_text(encoding="utf-8"))["torch"]
    return torch.__version__.split(".")[:2] == made_with.split(".")


def not_allowed(calls: Sequence[Call], findings: Iterable[Finding]) -> list[str]:
    """Return what is wrong with findings about these calls: faults of the hub, calls to be listed, and needless entries."""
    found = {finding.call: finding for finding in findings}
    listed = {str(call) for call in calls if is_listed(call)}
    wrong = [str(finding) for call, finding in found.items() if call not in listed or not finding.aot_eager]
    if is_made_for_this_torch():
        wrong += [f"{call}: is on the list in {FILE.name} and right by now: take it off" for call in listed - found.keys()]
    return wrong
