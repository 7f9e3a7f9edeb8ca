"""Plans to print, and golden files to compare whole reports with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.plan import Bid, Contender, Event, Plan, PlannedCluster, Price, Search

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def same_as_golden() -> Callable[[str, str], None]:
    """Compare text with a golden file; `GOLDEN=write` writes the file instead, for a person to read the difference."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if os.environ.get("GOLDEN") == "write":
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def whole() -> Plan:
    """Return one cluster, proven."""
    return WHOLE


@pytest.fixture
def mixed() -> Plan:
    """Return five clusters, not yet run."""
    return MIXED


def _measured(run_s: float, spread_s: float = 0.0) -> Price:
    return Price(run_s=run_s, spread_s=spread_s, source="measured", detail="median of 40 calls, 2 threads")


WHOLE = Plan(
    graph="graph0",
    graph_digest="0" * 64,
    inputs=("int64[8, 21]", "int64[8, 21]"),
    clusters=(
        PlannedCluster(
            name="c0",
            backend="openvino",
            nodes=("embedding", "linear", "softmax"),
            operators=("aten.embedding.default", "aten.linear.default", "aten.softmax.int"),
            predicted_s=0.0121,
            measured_s=0.0119,
            reason="the whole graph, and the fastest in the proof",
            bids=(
                Bid(backend="openvino", price=_measured(0.0121, 0.0002)),
                Bid(backend="onnxruntime", price=_measured(0.0133, 0.0001)),
                Bid(backend="eager", price=_measured(0.0304)),
            ),
        ),
    ),
    threads=2,
    busy_wait=True,
    predicted_s=0.0121,
    measured_s=0.0119,
    search=Search(regions=26, structures=5, candidates=15, measured=10, compiled=13, timed_now=10, method="chain", gap=0.0),
    decided_by="measured whole plans",
    contenders=(
        Contender(name="eager", median_s=0.0299, spread_s=0.0007, calls=40, n_clusters=1),
        Contender(name="openvino", median_s=0.0119, spread_s=0.0001, calls=40, n_clusters=1, won=True),
        Contender(name="onnxruntime", median_s=0.0131, spread_s=0.0002, calls=40, n_clusters=1),
    ),
    plan_s=18.42,
)
"""One cluster, proven."""


def _cluster(index: int, backend: str, operators: tuple[str, ...], *bids: Bid) -> PlannedCluster:
    nodes = tuple(f"n{index}_{position}" for position in range(len(operators)))
    return PlannedCluster(
        name=f"c{index}",
        backend=backend,
        nodes=nodes,
        operators=operators,
        source=(f"model.py:{10 + index} in forward", f"model.py:{20 + index} in forward")
        if index % 2
        else ("model.py:7 in embed",),
        predicted_s=None if backend == "eager" else 0.0004 * (index + 1),
        reason="nobody else takes it" if backend == "eager" else "cheapest bid",
        bids=bids,
    )


_REFUSED = Bid(backend="openvino", refusal="aten.sort.default: not in the operator table")

MIXED = Plan(
    graph="graph3",
    graph_digest="1" * 64,
    mode="forward",
    inputs=("float32[s0, 64]",),
    clusters=(
        _cluster(
            0,
            "openvino",
            ("aten.linear.default",) * 4,
            Bid(backend="inductor", price=Price(run_s=0.0008, source="estimated")),
        ),
        _cluster(1, "eager", ("aten.sort.default",), _REFUSED, Bid(backend="onnxruntime", refusal="sort: symbolic dims")),
        _cluster(2, "onnxruntime", ("aten.conv2d.default", "aten.relu.default"), _REFUSED),
        _cluster(3, "eager", ("aten.sort.default",), _REFUSED, Bid(backend="onnxruntime", refusal="sort: symbolic dims")),
        _cluster(4, "inductor", ("aten.add.Tensor", "aten.mul.Tensor"), Bid(backend="onnxruntime")),
    ),
    threads=1,
    accuracy=0.01,
    predicted_s=0.004,
    decided_by="estimates",
    events=(
        Event(kind="failed", stage="compile", message="RuntimeError: out of memory", backend="tvm", cluster="c2"),
        Event(kind="note", stage="time", message="the time budget of 20 s ran out"),
    ),
)
"""Five clusters, not yet run."""
