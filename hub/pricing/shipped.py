"""Costs shipped with the hub, measured on another machine: the basis of a first plan, before anything is measured here.

`benchmarks/price_table.py` measures them. Backends' costs are used as ratios to eager's time. Eager's costs are scaled to
this machine by the roofline: compute-bound parts by the peaks' operations per second, memory-bound ones by their bytes per
second; the overhead of a call is not scaled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hub.partition.group import EAGER
from hub.pricing.features import NAMES, VERSION
from hub.pricing.learned import Sample
from hub.pricing.roofline import CALL_S, Peaks

TABLE = Path(__file__).with_name("shipped.json")
DOUBT = 0.04
"""Variance of log(run_s) that another machine adds: 95 % within a factor of 1.5."""
PART_DOUBT = 0.3
"""Additional variance for parts of models: eager's time of a few operators is mostly call overhead.

Of 0, 0.1, 0.3, 1 and leaving parts out, 0.3 chose best on held-out models, each tried here with
`python -m benchmarks.prices`.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """Measured time of one cluster, or of one operator in eager."""

    model: str
    """Model that it is from: "bert", or "bert@4" for another batch."""
    kind: str
    """"graph" for all of a model, "cluster" for one of several in a whole plan, "part", or "operator"."""
    backend: str
    run_s: float
    compile_s: float
    features: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, and the peaks of the machine they were measured on, with its threads."""

    rows: tuple[Row, ...]
    peaks: Peaks
    starts_s: Mapping[str, float]
    """Seconds that a worker takes to start and to load the compiler's library, by backend."""

    def samples(self, backend: str, found: Peaks) -> tuple[Sample, ...]:
        """Return samples of a backend, or of single operators in eager, as a machine with these peaks would measure them.

        For a backend, ratios to eager count, and other machines share them; for eager, seconds count.
        """
        rows = (row for row in self.rows if row.backend == backend)
        if backend == EAGER:
            return tuple(_scaled(row, self.peaks, found) for row in rows if row.kind == "operator")
        doubts = {"part": DOUBT + PART_DOUBT}
        return tuple(Sample(row.features, row.run_s, doubt=doubts.get(row.kind, DOUBT)) for row in rows)

    def without(self, model: str) -> Table:
        """Return the table without any row of a model, regardless of its batch."""
        rows = (row for row in self.rows if row.model.partition("@")[0] != model)
        return replace(self, rows=tuple(rows))


@cache
def shipped_table() -> Table:
    """Return the table that ships with the hub."""
    return read_table(TABLE)


def read_table(path: Path) -> Table:
    """Return a table from its file, without rows if its features are of another version."""
    said: dict[str, Any] = json.loads(path.read_text())
    clusters: Sequence[dict[str, Any]] = said["clusters"] if said["features_version"] == VERSION else ()
    rows = tuple(row for cluster in clusters for row in _rows_of(cluster))
    return Table(rows, Peaks(said["flops_s"], said["bytes_s"]), said["starts_s"])


def _rows_of(cluster: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for each backend; features that are zero are not in the file."""
    features = dict.fromkeys(NAMES, 0.0) | {"version": float(VERSION)} | cluster["features"]
    for backend, run_s in cluster["run_s"].items():
        yield Row(cluster["model"], cluster["kind"], backend, run_s, cluster["compile_s"].get(backend, 0.0), features)


def bound_s(features: Mapping[str, float], found: Peaks, efficiency: float = 1.0) -> float:
    """Return the roofline of a cluster: the larger of compute and memory time, plus a call."""
    moved = features["read_bytes"] + features["written_bytes"] + features["weight_bytes"]
    return max(features["flops"] / (efficiency * found.flops_s), moved / found.bytes_s) + CALL_S


def _scaled(row: Row, there: Peaks, here: Peaks) -> Sample:
    run_s = row.run_s * bound_s(row.features, here) / bound_s(row.features, there)
    return Sample(row.features, run_s, doubt=DOUBT)
