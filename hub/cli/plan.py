"""`hub plan`: make, show and compare plan files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from hub.errors import OptionError, PlanError
from hub.plan import Plan
from hub.plan_file import plans_json, read_plans, write_plans
from hub.report.output import check_output

_FORMS = "write one of: hub plan MODEL -o plan.json, hub plan --show plan.json, hub plan diff a.json b.json"
_DIFF = "diff"


def do_plan(
    words: Sequence[str],
    show: str | None,
    output: str | None,
    batch: int | None,
    given: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Run one of the three forms of `hub plan`. Raise HubError on failure; exit with 1 if the plans differ."""
    if show is not None:
        _refuse_others(words=words, output=output, batch=batch, given=given)
        print_plans(read_plans(Path(show)), as_json=as_json)
    elif words and words[0] == _DIFF:
        _refuse_others(output=output, batch=batch, given=given)
        _print_diff(words[1:], as_json=as_json)
    elif len(words) == 1:
        _make(words[0], batch, given, output, as_json=as_json)
    else:
        raise OptionError("`hub plan` takes one model, or two plan files to compare, or one to show", hint=_FORMS)


def print_plans(plans: Sequence[Plan], *, as_json: bool) -> None:
    """Print plans as tables, or as the JSON of a plan file."""
    if as_json:
        typer.echo(plans_json(plans))
        return
    from hub.report.tables import plan_table

    console = Console()
    for plan in plans:
        console.print(plan_table(plan, width=console.width), crop=False)  # tables of backends may be wide


def _refuse_others(**others: Any) -> None:
    if used := [name for name, value in others.items() if value]:
        raise OptionError(f"{' and '.join(used)}: not for a form of `hub plan` that makes no plan", hint=_FORMS)


def _make(model: str, batch: int | None, given: Mapping[str, Any], output: str | None, *, as_json: bool) -> None:
    from hub.bench.models import check_name, load_model

    check_name(model)
    if output is not None:
        check_output(Path(output))
    from hub.frontend.explaining import explain  # imports torch, so only after the arguments are checked

    loaded = load_model(model, batch=batch, is_tried=True)
    # A plan named by the environment or hub.toml is the one to be remade.
    plans: Sequence[Plan] = explain(loaded.module, *loaded.inputs, options={"plan": None, **given})
    print_plans(plans, as_json=as_json)
    if output is not None:
        write_plans(Path(output), plans)


def _print_diff(files: Sequence[str], *, as_json: bool) -> None:
    if len(files) != 2:
        raise OptionError(f"`hub plan diff` compares two plan files, got {len(files)}", hint=_FORMS)
    import json

    from hub.report.plan_diff import diff_facts, diff_text, plan_diff

    first, second = files
    try:
        diffs = plan_diff(read_plans(Path(first)), read_plans(Path(second)))
    except PlanError as error:  # status 1 means that the plans differ, so a bad file has another one, as with diff
        raise OptionError(error.message, hint=error.hint) from error
    if as_json:
        typer.echo(json.dumps(diff_facts(diffs), indent=2))
    else:
        Console(highlight=False).print(diff_text(diffs, first, second))
    if not all(diff.is_empty for diff in diffs):
        raise typer.Exit(1)
