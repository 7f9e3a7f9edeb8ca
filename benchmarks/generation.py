"""How long `generate` takes to its first token, to a settled plan and for each token, compared with eager and Inductor.

For each of sixteen small language models (`tests.generation.tiny`), in a new process each, with empty caches:

- `eager`: the unchanged model;
- `hub`: `hub.compile(model)` with the default options; `stall_s` is the longest call, one that was captured;
- `inductor`: `model.forward = torch.compile(model.forward, dynamic=True)`.

`first_s` is the time to the first token of the first prompt; `ready_s` the time until the last program is compiled: for the
hub until `hub.wait` returns, for Inductor until a whole `generate` compiled nothing. `token_ms` is the median of calls for
one token after that. Prints a table, and writes `results/generation.json`. Run it with
`python -m benchmarks.generation [--models llama,t5]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, cast

import torch

import hub
from benchmarks.fresh import answer_of
from hub.bench.machine import this_machine
from tests.generation.tiny import MODELS, built, prompt

RESULTS = Path(__file__).parent / "results" / "generation.json"
WAYS = ("eager", "hub", "inductor")
TOKENS = 32
MAX_ROUNDS = 12
"""Largest number of calls of `generate` until a contender compiles nothing more."""


def measured(name: str, way: str) -> dict[str, Any]:
    """Return the figures of one contender in this process."""
    plain = built(name)
    expected = _tokens(plain, name)
    model: Any = built(name)
    if way == "hub":
        model = hub.compile(model)
    elif way == "inductor":
        model.forward = torch.compile(model.forward, dynamic=True)  # pyright: ignore[reportUnknownMemberType] - torch's
    calls: list[float] = []
    _time_calls(model, calls)
    start = time.perf_counter()
    right = [torch.equal(_tokens(model, name), expected)]
    first_s, stall_s = calls[0], max(calls)
    from hub.torch_private import counters

    for _ in range(MAX_ROUNDS):
        compiled = counters["stats"]["unique_graphs"]
        right.append(torch.equal(_tokens(model, name), expected))
        if way != "hub" and counters["stats"]["unique_graphs"] == compiled:
            break
        if way == "hub" and hub.wait(model, 1.0):
            break
        stall_s = max(stall_s, *calls)
    if way == "hub":
        hub.wait(model, 600)
    ready_s = time.perf_counter() - start
    for _ in range(3):
        calls.clear()
        right.append(torch.equal(_tokens(model, name), expected))
    token_ms = statistics.median(calls[1:]) * 1e3
    return {"first_s": first_s, "stall_s": stall_s, "ready_s": ready_s, "token_ms": token_ms, "is_right": all(right)}


def _tokens(model: Any, name: str) -> torch.Tensor:
    with torch.no_grad():
        return model.generate(**prompt(name), do_sample=False, max_new_tokens=TOKENS)


def _time_calls(model: Any, calls: list[float]) -> None:
    kind = cast("Any", type(model))
    inner = kind.__call__

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(self, *args, **kwargs)
        finally:
            if self is model:
                calls.append(time.perf_counter() - start)

    kind.__call__ = timed


def row(name: str, ways: dict[str, dict[str, Any]]) -> str:
    """Return one model's line of the table."""
    cells = [name]
    for way in WAYS:
        found = ways[way]
        if "failed" in found:
            cells.append(f"fails: {found['failed'][:60]}")
            continue
        wrong = "" if found["is_right"] else " WRONG"
        cells.append(f"{found['first_s']:.2f} / {found['ready_s']:.0f} s / {found['token_ms']:.2f} ms{wrong}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Run all contenders, print a table and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--one", nargs=2)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(*given.one)))
        return
    found: dict[str, Any] = {}
    print(f"| model | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}")
    for name in given.models.split(","):
        found[name] = {way: answer_of("benchmarks.generation", name, way) for way in WAYS}
        print(row(name, found[name]), flush=True)
    command = f"python -m benchmarks.generation --models {given.models}"
    head = {"command": command, "machine": this_machine().model_dump(mode="json")}
    RESULTS.write_text(json.dumps({**head, "models": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
