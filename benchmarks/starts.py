"""How long a user waits for the first answer with the default options, and for the settled plan, relative to Inductor.

Each time is measured in a process of its own with empty caches; the contenders alternate:

- `eager` is the first call without any compiler, and `dynamo` with `torch.compile(backend="eager")`, which captures and
  compiles nothing;
- `direct` is `hub.compile`, whose first call runs in eager, and whose second call is captured: `second` is that one;
- `hub` is `torch.compile`, which captures its first call, answers it in eager and plans in the background. It is `settled`
  when the decided plan is in use, while nothing else is called, and `verified` when all verification after the first answer
  has finished, too;
- `three` is the hub with the three backends that win most: with all backends it should neither settle later nor choose
  worse;
- `inductor` is PyTorch's own compiler.

Prints a table, and writes `results/starts.json`. Run it with `make bench-starts`, or with
`python -m benchmarks.starts --models mlp,resnet18 --rounds 3`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import hub
from benchmarks.fresh import answer_of
from hub.bench import zoo
from hub.bench.machine import this_machine
from hub.bench.models import load_model
from hub.plan import DecidedBy

RESULTS = Path(__file__).parent / "results" / "starts.json"
WAYS = ("eager", "dynamo", "direct", "hub", "three", "inductor")
HUBS: Mapping[str, Mapping[str, Any]] = {
    "direct": {},
    "hub": {},
    "three": {"backends": ("inductor", "onnxruntime", "openvino")},
}
CALLS_S, MIN_CALLS = 1.0, 10
"""Seconds of calls, and the least number of calls, whose median is the settled plan's time."""
LOOK_S = 0.1
"""Seconds between two checks of whether the decided plan is in use."""
CAPTURE_S, SETTLE_S = 1.0, 15.0
"""The bars, in seconds: the first answer beyond eager's, and the plan beyond Inductor's compile time."""


def started(name: str, way: str) -> dict[str, Any]:
    """Return seconds from the loaded model to the first answer in this process, and until the plan is settled."""
    from hub.torch_private import dynamo_config

    model = load_model(name)
    dynamo_config.allow_rnn = True
    ways: dict[str, dict[str, Any]] = {name: {"backend": "hub", "options": dict(options)} for name, options in HUBS.items()}
    backends: Mapping[str, dict[str, Any]] = {**ways, "inductor": {"backend": "inductor"}, "dynamo": {"backend": "eager"}}
    start = time.perf_counter()
    with torch.no_grad():
        compiled: Any = torch.compile(model.module, **backends[way]) if way in backends else model.module  # pyright: ignore[reportUnknownMemberType] - torch's
        if way == "direct":
            compiled = hub.compile(model.module, options=backends[way]["options"])
        compiled(*model.inputs)
        first_s = time.perf_counter() - start
        compiled(*model.inputs)
        second_s = time.perf_counter() - start - first_s
        if way not in HUBS:
            return {"first_s": first_s, "settled_s": first_s}
        in_use: list[float] = []
        while not hub.wait(compiled, LOOK_S):
            if not in_use and all(plan.decided_by is DecidedBy.MEASURED_PLANS for plan in hub.plans(compiled)):
                in_use.append(time.perf_counter() - start)
        compiled(*model.inputs)
        verified_s = time.perf_counter() - start
        call_s = _call_s(lambda: compiled(*model.inputs))
    plans = [" + ".join(dict.fromkeys(found.backend for found in plan.clusters)) or "eager" for plan in hub.plans(compiled)]
    settled_s = in_use[0] if in_use else verified_s
    return {
        "first_s": first_s,
        "second_s": second_s,
        "settled_s": settled_s,
        "verified_s": verified_s,
        "call_s": call_s,
        "plans": plans,
    }


def _call_s(call: Callable[[], Any]) -> float:
    """Return the median seconds of calls after the first few."""
    samples: list[float] = []
    end = time.perf_counter() + CALLS_S
    while time.perf_counter() < end or len(samples) < MIN_CALLS:
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[MIN_CALLS // 2 :])


def compared(model: str, rounds: int) -> dict[str, Any]:
    """Return medians of all contenders, in alternating runs."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, found in runs.items():
            found.append(answer_of("benchmarks.starts", model, way))
    failed = [run["failed"] for found in runs.values() for run in found if "failed" in run]
    if failed:
        return {"failed": failed[0], "runs": runs}
    row = {way: statistics.median(run["first_s"] for run in found) for way, found in runs.items()}
    row["second"] = statistics.median(run["second_s"] for run in runs["direct"])
    for way, name in (("hub", "settled"), ("three", "settled, three")):
        row[name] = statistics.median(run["settled_s"] for run in runs[way])
    for way, name in (("hub", "call"), ("three", "call, three")):
        row[name] = statistics.median(run["call_s"] for run in runs[way])
    return {**row, "runs": runs}


def summary_of(found: Mapping[str, Mapping[str, Any]]) -> Mapping[str, float]:
    """Return how often the first answer was in time, and the median of the settling time beyond Inductor's."""
    rows = [row for row in found.values() if "failed" not in row]
    beyond = [row["settled"] - row["inductor"] for row in rows]
    quick = {way: [row[way] - row["eager"] for row in rows] for way in ("direct", "hub")}
    own = [row["hub"] - row["dynamo"] for row in rows]
    return {
        "models": len(rows),
        **{f"first answers within eager's time + 1 s, {way}": sum(s <= CAPTURE_S for s in quick[way]) for way in quick},
        **{f"median of first answer - eager, {way}": statistics.median(quick[way]) for way in quick},
        "median of the second call, direct": statistics.median(row["second"] for row in rows),
        "median of first answer - Dynamo's own, hub": statistics.median(own),
        "median of settled - Inductor": statistics.median(beyond),
        "settled within Inductor's time + 15 s": sum(one <= SETTLE_S for one in beyond),
        "time to settle, all backends / three": _ratio(rows, "settled"),
        "time of a call, all backends / three": _ratio(rows, "call"),
    }


def _ratio(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the geometric mean of the hub's time with all backends relative to its time with three."""
    return statistics.geometric_mean(row[name] / row[f"{name}, three"] for row in rows)


def main() -> None:
    """Time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(zoo.MODELS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(started(*given.one)))
        return
    found: dict[str, Any] = {}
    names = ("dynamo", "direct", "second", "hub", "inductor", "settled", "three", "ms a call", "three")
    print(f"{'seconds':18}{'eager':>8}" + "".join(f"{name:>10}" for name in names))
    for model in given.models.split(","):
        row = found[model] = compared(model, given.rounds)
        print(f"{model:18}{_text(row)}", flush=True)
    summary = summary_of(found)
    print(json.dumps(summary, indent=1))
    command = f"python -m benchmarks.starts --models {given.models} --rounds {given.rounds}"
    head = {"command": command, "machine": this_machine().model_dump(mode="json")}
    given.output.write_text(json.dumps({**head, "summary": summary, "models": found}, indent=1) + "\n")


def _text(row: Mapping[str, Any]) -> str:
    if "failed" in row:
        return f"  {row['failed']}"[:100]
    plans: Sequence[str] = row["runs"]["hub"][-1]["plans"]
    seconds = ("dynamo", "direct", "second", "hub", "inductor", "settled", "settled, three")
    figures = "".join(f"{row[name]:10.1f}" for name in seconds)
    calls = f"{row['call'] * 1e3:10.2f}{row['call, three'] * 1e3:10.2f}"
    return f"{row['eager']:8.2f}{figures}{calls}   {', '.join(plans)}"


if __name__ == "__main__":
    main()
