"""The process of one cold start: builds the model, calls it, waits for its plan, and reports how long that took."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hub.bench.cold import Start
from hub.bench.models import LoadedModel, load_model
from hub.errors import CaptureError, HubError, text_of
from hub.frontend.ownership import captured_plans, phases_of, wait
from hub.process.phases import Phase, Phases, Work
from hub.process.threads import set_threads
from hub.torch_private import compile_fx, compile_fx_inner

Calls = Callable[..., Any]


def main(marks: Sequence[float]) -> None:
    """Handle the request in the command line. `marks` are the times around the imports of PyTorch and of the hub."""
    asked: Mapping[str, Any] = json.loads(sys.argv[1])
    try:
        start = started(asked, marks)
    except Exception as error:  # noqa: BLE001 - a model, or a compiler, may raise anything
        text = error.message if isinstance(error, HubError) else text_of(error)
        start = Start(failure=text, is_uncaptured=isinstance(error, CaptureError))
    (Path(asked["folder"]) / "start.json").write_text(start.model_dump_json(), encoding="utf-8")


def started(asked: Mapping[str, Any], marks: Sequence[float]) -> Start:
    """Build the model, and start it in the requested way."""
    if asked["threads"] is not None:
        set_threads(asked["threads"])
    built_s = time.monotonic()
    loaded = load_model(asked["model"], batch=asked["batch"], small=asked["small"])
    costs = {"torch_s": marks[1] - marks[0], "hub_s": marks[2] - marks[1], "model_s": time.monotonic() - built_s}
    with torch.no_grad():
        if asked["way"] == "inductor":
            return _with_inductor(loaded, costs)
        return _with_hub(loaded, asked["given"], costs)


def _with_hub(loaded: LoadedModel, options: Mapping[str, Any], costs: Mapping[str, float]) -> Start:
    compiled = _compiled(loaded, backend="hub", options=dict(options))
    calls = _two_calls(compiled, loaded.inputs)
    captured_plans(compiled)  # raises if nothing was captured
    wait(compiled)
    verified_s = time.monotonic()
    phases = (*calls, *phases_of(compiled))
    plans = [" + ".join(plan.backends) for plan in captured_plans(compiled)]
    in_use_s = max((phase.ended_s for phase in phases if phase.work is Work.BUILD), default=calls[0].ended_s)
    return _start(costs, calls, phases, in_use_s, verified_s=verified_s - calls[0].began_s, plans=tuple(plans))


def _with_inductor(loaded: LoadedModel, costs: Mapping[str, float]) -> Start:
    """Start a model as `torch.compile` does, with Inductor's own part timed separately from AOTAutograd's."""
    phases = Phases()

    def inner(*args: Any, **facts: Any) -> Any:
        with phases.during(Work.COMPILE, "inductor"):
            return compile_fx_inner(*args, **facts)

    def backend(program: Any, inputs: Any) -> Any:
        with phases.during(Work.CAPTURE):
            return compile_fx(program, inputs, inner_compile=inner)

    calls = _two_calls(_compiled(loaded, backend=backend), loaded.inputs)
    return _start(costs, calls, (*calls, *phases.found), calls[0].ended_s, plans=("inductor",))


def _compiled(loaded: LoadedModel, **facts: Any) -> Any:
    compile_model: Calls = torch.compile  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return compile_model(loaded.module, **facts)


def _two_calls(call: Calls, inputs: Sequence[Any]) -> tuple[Phase, Phase]:
    phases = Phases()
    for _ in range(2):
        with phases.during(Work.DYNAMO):
            call(*inputs)
    first, second = phases.found
    return first, second


def _start(
    costs: Mapping[str, float], calls: tuple[Phase, Phase], phases: Sequence[Phase], in_use_s: float, **facts: Any
) -> Start:
    """Return the report, with seconds relative to the first call."""
    first, second = calls
    zero_s = first.began_s
    moved = (replace(one, began_s=one.began_s - zero_s, ended_s=one.ended_s - zero_s) for one in phases)
    return Start(
        **costs,
        first_s=first.seconds,
        second_s=second.seconds,
        in_use_s=max(in_use_s, first.ended_s) - zero_s,
        phases=tuple(sorted(moved, key=lambda phase: (phase.began_s, -phase.ended_s))),
        **facts,
    )
