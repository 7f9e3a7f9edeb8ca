"""`hub tune`: search longer for the best plan of a model, and save it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import typer

from hub.bench.contenders import compiled_by_hub
from hub.bench.models import LoadedModel, load_model
from hub.cli.output import echo_json
from hub.cli.plan import print_plans
from hub.config.options import Options, resolve
from hub.config.settings import working_folder
from hub.errors import CacheError, OptionError
from hub.frontend.ownership import captured_plans
from hub.plan import DecidedBy, Plan, Stage
from hub.plan_file import plans_json, write_plans
from hub.planning.kernels import tune_kernels, tuning_backends
from hub.planning.make import is_lasting
from hub.report.numbers import duration
from hub.report.output import check_output
from hub.report.progress import progress_for

SEARCH_SHARE = 0.8
"""Share of the budget in which backends search for code; the rest is for planning with the results."""


def print_tuning(spec: str, batch: int | None, given: Mapping[str, Any], output: str | None, *, as_json: bool) -> None:
    """Run a model with `tune="full"`; print its plans and where they are saved. Raise HubError on failure."""
    wanted = _tuning(given)
    if output is not None:
        check_output(Path(output))
    loaded = load_model(spec, batch=batch, is_tried=True)
    began_s = time.perf_counter()
    searched = _searched(spec, loaded, wanted)
    wanted = _left(wanted, searched, time.perf_counter() - began_s)
    compiled = compiled_by_hub(loaded.module, wanted)
    with torch.no_grad():
        compiled(*loaded.inputs)
    took_s = time.perf_counter() - began_s
    plans: Sequence[Plan] = captured_plans(compiled)
    if output is not None:
        write_plans(Path(output), plans)
    lost = [event.message for plan in plans for event in plan.events if event.stage is Stage.SAVE]
    is_kept = not lost and all(plan.decided_by is DecidedBy.REPLAYED or is_lasting(plan) for plan in plans)
    chosen = resolve(wanted, os.environ, working_folder())
    if as_json:
        kept_in = str(chosen.cache.root) if is_kept else None
        facts = _facts(spec, chosen, took_s, output) | {"kept_in": kept_in, "searched": list(searched)}
        echo_json(json.dumps(facts | json.loads(plans_json(plans)), indent=2))
    else:
        print_plans(plans, as_json=False)
        for line in searched:
            typer.echo(f"searched    {line}")
        is_disturbed = any(plan.is_provisional for plan in plans)
        for line in _lines(chosen, took_s, output, is_kept=is_kept, is_disturbed=is_disturbed):
            typer.echo(line)
    if lost and output is None:
        raise CacheError(
            lost[0], hint="free some space, or set HUB_CACHE_DIR to another folder; -o FILE writes a plan file"
        )


def _tuning(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a tuning run: full effort, and no plan file or saved plan to replay."""
    if given.get("tune", "full") != "full":
        raise OptionError(
            f"`hub tune` tunes fully, not {given['tune']!r}", hint="leave --tune out; --budget limits the time"
        )
    if "plan" in given:
        raise OptionError("`hub tune` looks for a plan, and --plan replays one", hint="leave --plan out, or use `hub run`")
    return {"plan": None, "renew": True, **given, "tune": "full"}


def _searched(spec: str, loaded: LoadedModel, wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """Run the code search of each backend requested by name, within its share of the budget; return what they found."""
    options = resolve(wanted, os.environ, working_folder())
    progress = progress_for(spec)
    names = tuning_backends(options)
    if names:
        progress.stage(f"search by {', '.join(names)}")
    try:
        return tune_kernels(loaded.module, loaded.inputs, options, options.budget_s * SEARCH_SHARE, progress.advance)
    finally:
        progress.done()


def _left(wanted: Mapping[str, Any], searched: Sequence[str], spent_s: float) -> Mapping[str, Any]:
    """Return the options with the remaining budget, if some of it was spent."""
    if not searched:
        return wanted
    budget_s = resolve(wanted, os.environ, working_folder()).budget_s
    return {**wanted, "budget_s": max(budget_s - spent_s, budget_s * (1 - SEARCH_SHARE) / 2)}


def _facts(spec: str, chosen: Options, took_s: float, output: str | None) -> dict[str, Any]:
    return {"model": spec, "budget_s": chosen.budget_s, "took_s": took_s, "plan_file": output}


def _lines(chosen: Options, took_s: float, output: str | None, *, is_kept: bool, is_disturbed: bool) -> Iterator[str]:
    yield f"tuned in    {duration(took_s)}, budget {duration(chosen.budget_s)}"
    if is_kept:
        yield f"kept in     {chosen.cache.root}"
    else:
        yield "not kept    the next process plans again (see the events of the plan)"
    if is_disturbed:
        yield "disturbed   other work used the cores during too many timings; tune again, once the machine is idle"
    if output is not None:
        yield f'plan file   {output}; replay it with options={{"plan": "{output}"}}'
