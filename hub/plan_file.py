"""Plan files: JSON that people read, edit and commit, one file per model, one plan for each of its captured graphs.

`{"format": 1, "plans": [...], "digests": [...]}`, or a single plan as `Plan.to_json` returns it. The optional digests show
whether a plan was edited: its times then no longer apply. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hub.config.suggest import did_you_mean, is_misspelt
from hub.errors import OptionError, PlanError, words_of
from hub.plan import EAGER, FORMAT, Bid, Contender, DecidedBy, Event, EventKind, Plan, PlannedCluster, Price, Search, Stage
from hub.report.numbers import names_text
from hub.report.output import check_output

_KEYS = ("format", "plans", "digests")
_DECIDING = ("plans", "clusters")
"""Fields of which every plan file has one."""
_AGAIN = "write it again with `hub explain MODEL -o FILE`"
_ANOTHER = "name a plan file; `hub explain MODEL -o FILE` writes one"
EDITED = Event(kind=EventKind.NOTE, stage=Stage.LOAD, message="edited by hand: the previous times and reasons are left out")
"""Event on every plan that differs from what the hub wrote."""
_FIELDS = tuple(
    field for kind in (Plan, PlannedCluster, Bid, Price, Contender, Event, Search) for field in kind.model_fields
)


def read_plans(path: Path) -> tuple[Plan, ...]:
    """Return the plans in a file, at least one; edited plans lose the evidence of the original plan.

    Raise OptionError if the file cannot be read, and PlanError, naming the field and the fix, if it is not a plan file.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if not text.strip():
            raise PlanError(f"{path} is not a plan file: it is empty", hint=_AGAIN)
        data: Any = json.loads(text)
    except OSError as error:
        raise OptionError(
            f"the plan file {path} cannot be read: {words_of(error)}", hint="write one with `hub explain MODEL -o FILE`"
        ) from error
    except (ValueError, RecursionError) as error:  # broken JSON, broken UTF-8, or endless nesting of brackets
        raise PlanError(f"{path} is not a plan file: not JSON: {error}", hint=_AGAIN) from error
    plans = tuple(_plan(item, where, path) for where, item in _items(data, path))
    if pending := next(filter(_is_pending, plans), None):
        raise PlanError(
            f"{path}: the plan of {pending.graph or 'a graph'} was written before planning was over: all of it is in eager",
            hint="call `hub.wait` before `hub.plans`, and write it again",
        )
    written = data.get("digests")
    return plans if written is None else tuple(plan if _digest(plan) in written else _edited(plan) for plan in plans)


def plans_json(plans: Sequence[Plan]) -> str:
    """Return the text of a plan file."""
    table = {
        "format": FORMAT,
        "plans": [plan.model_dump(mode="json") for plan in plans],
        "digests": list(map(_digest, plans)),
    }
    return json.dumps(table, indent=2)


def _is_pending(plan: Plan) -> bool:
    """Return whether a plan only stands for one that was being made; after an edit, it is what its author decided."""
    return plan.decided_by is DecidedBy.PENDING and plan.backends == (EAGER,)


def _digest(plan: Plan) -> str:
    """Return the digest of what a plan decides, independent of its evidence, layout and names."""
    clusters = [(cluster.backend, cluster.nodes) for cluster in plan.clusters]
    decided = (plan.mode, clusters, plan.threads, plan.busy_wait, plan.accuracy, plan.effort)
    return hashlib.sha256(json.dumps(decided).encode()).hexdigest()


def _edited(plan: Plan) -> Plan:
    """Return a plan reduced to its decision and what it applies to."""
    kept = {"name", "backend", "nodes", "operators", "source"}
    return Plan(
        graph=plan.graph,
        graph_digest=plan.graph_digest,
        mode=plan.mode,
        inputs=plan.inputs,
        clusters=tuple(PlannedCluster(**cluster.model_dump(include=kept)) for cluster in plan.clusters),
        threads=plan.threads,
        busy_wait=plan.busy_wait,
        accuracy=plan.accuracy,
        effort=plan.effort,
        decided_by=DecidedBy.EDITED,
        events=(EDITED,),
    )


def write_plans(path: Path, plans: Sequence[Plan]) -> None:
    """Write a plan file atomically. Raise OptionError or PlanError if that is impossible, or if there is no plan."""
    if not plans:
        raise PlanError(f"no graph was captured, so there is no plan for {path}")
    check_output(path)
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(plans_json(plans) + "\n", encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        hint = "free some space, or name a file elsewhere"
        raise PlanError(f"{path} cannot be written: {words_of(error)}", hint=hint) from error


def _items(data: Any, path: Path) -> list[tuple[str, Any]]:
    """Return the items that should be plans, each with its position in the file."""
    if not isinstance(data, dict):
        kind = "list" if isinstance(data, list) else type(data).__name__
        raise PlanError(
            f'{path} is not a plan file: a JSON {kind}, not {{"format": {FORMAT}, "plans": [...]}}', hint=_ANOTHER
        )
    table = cast("dict[str, Any]", data)
    if table and not any(is_misspelt(key, _DECIDING) for key in table):
        text = f"{path} is not a plan file: it has neither plans nor clusters, but {names_text(table)}"
        raise PlanError(text, hint=_ANOTHER)
    _check_format(table, path, "format")
    if "plans" not in table and "clusters" in table:
        return [("", table)]
    for key in table:
        if key not in _KEYS:
            raise PlanError(f"{path}: {key}: no such field{did_you_mean(key, _KEYS)}", hint=_AGAIN)
    if not isinstance(table.get("digests", []), list):
        raise PlanError(f"{path}: digests: must be a list", hint="delete it, or " + _AGAIN)
    plans = table.get("plans")
    if not isinstance(plans, list) or not plans:
        found = "missing" if "plans" not in table else "must be a list of at least one plan"
        raise PlanError(f"{path}: plans: {found}", hint=_AGAIN)
    return [(f"plans.{number}.", item) for number, item in enumerate(cast("list[Any]", plans))]


def _check_format(table: Mapping[str, Any], path: Path, where: str) -> None:
    if (found := table.get("format", FORMAT)) != FORMAT:
        raise PlanError(f"{path}: {where}: this hub reads format {FORMAT}, the file says {found!r}", hint=_AGAIN)


def _plan(item: Any, where: str, path: Path) -> Plan:
    if isinstance(item, dict):
        _check_format(cast("dict[str, Any]", item), path, f"{where}format")
    try:
        return Plan.model_validate(item)
    except ValidationError as error:
        raise _wrong_field(error.errors()[0], where, path) from None


def _wrong_field(first: ErrorDetails, where: str, path: Path) -> PlanError:
    place = (where + ".".join(map(str, first["loc"]))).rstrip(".")
    if first["type"] == "missing":
        return PlanError(
            f"{path}: {place}: missing", hint="add it: every plan needs clusters, every cluster backend and nodes"
        )
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        return PlanError(f"{path}: {place}: no such field{did_you_mean(key, _FIELDS)}", hint="rename or delete it")
    message = f"{first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r:.60}"
    return PlanError(f"{path}: {place}: {message}", hint=f"correct the field, or {_AGAIN}")
