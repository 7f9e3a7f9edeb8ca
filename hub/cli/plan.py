"""`hub plan`: show and compare plan files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console

from hub.cli.output import echo_json
from hub.errors import OptionError, PlanError
from hub.plan import Plan
from hub.plan_file import plans_json, read_plans

_PIPE_WIDTH = 10_000
"""Characters of a line where no width is set: more than any table has."""


def print_plan_file(file: str, *, as_json: bool) -> None:
    """Print the plans of a file. Raise PlanError if it cannot be read."""
    print_plans(read_plans(Path(file)), as_json=as_json)


def print_plans(plans: Sequence[Plan], *, as_json: bool) -> None:
    """Print plans as tables, or as the JSON of a plan file."""
    if as_json:
        echo_json(plans_json(plans))
        return
    from hub.report.tables import plan_table

    console = _console()
    for plan in plans:
        console.print(plan_table(plan, width=console.width), crop=False)  # tables of backends may be wide


def print_diff(old: str, new: str, *, as_json: bool) -> None:
    """Print what differs between two plan files, and exit with 1 if anything does. Raise OptionError if one is unusable."""
    from hub.report.plan_diff import diff_facts, diff_text, plan_diff

    try:
        diffs = plan_diff(read_plans(Path(old)), read_plans(Path(new)))
    except PlanError as error:  # status 1 means that the plans differ, so a bad file has another one, as with diff
        raise OptionError(error.message, hint=error.hint) from error
    if as_json:
        echo_json(json.dumps(diff_facts(diffs), indent=2))
    else:
        _console(highlight=False).print(diff_text(diffs, old, new))
    if not all(diff.is_empty for diff in diffs):
        raise typer.Exit(1)


def _console(*, highlight: bool = True) -> Console:
    """Return standard output. Lines wrap at a terminal's width or at COLUMNS, and in pipes and files not at all."""
    is_free = not Console().is_terminal and not os.environ.get("COLUMNS", "").isdigit()
    return Console(highlight=highlight, width=_PIPE_WIDTH if is_free else None)
