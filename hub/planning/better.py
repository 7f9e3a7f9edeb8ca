"""Hands the best plan so far from the process that plans to the one that serves, as a file: the newest one counts."""

from __future__ import annotations

from pathlib import Path

from hub.plan import Plan

_NAME = "better.json"


def tell_better(folder: Path, plan: Plan) -> None:
    """Lay down a plan, in place of one that nobody has taken yet."""
    new = folder / f"{_NAME}.new"
    new.write_text(plan.model_dump_json(), encoding="utf-8")
    new.replace(folder / _NAME)


def take_better(folder: Path) -> Plan | None:
    """Return the plan that was laid down since this was asked last; None where there is none."""
    taken = folder / f"{_NAME}.taken"
    try:
        (folder / _NAME).replace(taken)
    except FileNotFoundError:
        return None
    return Plan.model_validate_json(taken.read_text(encoding="utf-8"))
