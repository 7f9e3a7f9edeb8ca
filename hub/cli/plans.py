"""`hub explain` and `hub run`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import typer

import hub
from hub.bench.closeness import Difference, difference, tensors_in
from hub.bench.contenders import compiled_by_hub
from hub.bench.models import load_model
from hub.capture.call import uncompiled
from hub.cli.output import echo_json
from hub.cli.plan import print_plans
from hub.errors import OptionError
from hub.frontend.direct.why_dynamo import calls_text, why_dynamo
from hub.frontend.ownership import captured_plans
from hub.plan import Plan
from hub.plan_file import plans_json, write_plans
from hub.plugin.table import dtype_name
from hub.pricing.timing import Timing, time_call
from hub.process.accelerators import accelerators_of, wait_for
from hub.report.numbers import duration, ratio, spread
from hub.report.output import check_output

_TIMED_S = 1.0
"""Seconds for which `hub run` times the hub, and then eager."""


def print_explanation(spec: str, batch: int | None, given: Mapping[str, Any], output: str | None, *, as_json: bool) -> None:
    """Print the plans of a model, one for each captured graph, without running them; write them if `output` names a file.

    A plan file that the environment or a hub.toml names is the one to be written anew, so it is not replayed then. Raise
    HubError on failure.
    """
    if "debug_dir" in given:
        raise OptionError("`hub explain` compiles nothing, so --debug-dir would stay empty", hint="`hub run` fills it")
    if output is not None:
        check_output(Path(output))
        given = {"plan": None, **given}
    loaded = load_model(spec, batch=batch, is_tried=True)
    plans: Sequence[Plan] = hub.explain(loaded.module, *loaded.inputs, options=given or None)
    print_plans(plans, as_json=as_json)
    if not as_json:
        typer.echo(calls_text(why_dynamo(uncompiled(loaded.module), loaded.inputs)))
    if output is not None:
        write_plans(Path(output), plans)


def print_run(spec: str, batch: int | None, given: Mapping[str, Any], *, as_json: bool) -> None:
    """Run a model through the hub and in eager; print outputs, difference, time and plan. Raise HubError on failure."""
    loaded = load_model(spec, batch=batch, is_tried=True)
    compiled = compiled_by_hub(loaded.module, given)
    with torch.no_grad():
        awaited = accelerators_of((*loaded.inputs, *loaded.module.parameters()))
        wait_for(awaited)
        began_s = time.perf_counter()
        found = compiled(*loaded.inputs)
        wait_for(awaited)
        first_s = time.perf_counter() - began_s
        apart = difference(found, loaded.module(*loaded.inputs))
        warm = time_call(lambda: compiled(*loaded.inputs), _TIMED_S, awaited=awaited)
        eager = time_call(lambda: loaded.module(*loaded.inputs), _TIMED_S, awaited=awaited)
    plans: Sequence[Plan] = captured_plans(compiled)
    if as_json:
        echo_json(
            json.dumps(_run_facts(spec, found, apart, first_s, warm, eager) | json.loads(plans_json(plans)), indent=2)
        )
        return
    print_plans(plans, as_json=False)
    for line in _run_lines(found, apart, first_s, warm, eager):
        typer.echo(line)


def _run_facts(spec: str, found: Any, apart: Difference, first_s: float, warm: Timing, eager: Timing) -> dict[str, Any]:
    return {
        "model": spec,
        "outputs": [{"dtype": dtype_name(value.dtype), "shape": list(value.shape)} for value in tensors_in(found)],
        "max_abs_error": apart.absolute,
        "relative_error": apart.relative,
        "first_call_s": first_s,
        "median_s": warm.median_s,
        "spread_s": warm.spread_s,
        "eager_median_s": eager.median_s,
        "eager_spread_s": eager.spread_s,
    }


def _run_lines(found: Any, apart: Difference, first_s: float, warm: Timing, eager: Timing) -> tuple[str, ...]:
    outputs = ", ".join(f"{dtype_name(value.dtype)}{list(value.shape)}" for value in tensors_in(found))
    return (
        f"outputs     {outputs}",
        f"difference  {apart.absolute:.2e} at most from eager, {apart.relative:.2e} of its largest value",
        f"first call  {duration(first_s)}, with planning and compiling",
        f"one call    {spread(warm.median_s, warm.spread_s)}",
        f"eager       {spread(eager.median_s, eager.spread_s)}, {ratio(eager.median_s, warm.median_s)} the hub's",
    )
