"""Cached plans: sealed files, one for each key."""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path

from hub.cache.artifacts import PARTIAL
from hub.cache.seals import unsealed, write_sealed
from hub.cache.trust import distrust
from hub.errors import PlanError, words_of
from hub.plan import Plan

PLANS = "plans"


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """Result of reading a cached plan."""

    plan: Plan | None = None
    made: str = ""
    """Time of saving in UTC, as ISO 8601."""
    problem: str = ""
    """Reason why an existing plan must not be used; empty if there is none."""


def read_plan(path: Path) -> KeptPlan:
    """Return the plan at `ROOT/plans/KEY.json`, if every byte is as it was sealed. Raises nothing."""
    try:
        if reason := distrust(path.parent) or distrust(path):
            return KeptPlan(problem=reason)
        facts = unsealed(path.read_bytes())
    except FileNotFoundError:
        return KeptPlan()
    except OSError as error:
        return KeptPlan(problem=f"{path} cannot be read: {words_of(error)}")
    if facts is None:
        return KeptPlan(problem=f"{path} is damaged")
    if facts.get("key") != path.stem:
        return KeptPlan(problem=f"{path} holds what was sealed as {facts.get('key')}")
    try:
        return KeptPlan(Plan.from_json(json.dumps(facts.get("plan"))), str(facts.get("made")))
    except PlanError as error:
        return KeptPlan(problem=f"{path} is unusable: {error.message}")


def write_plan(path: Path, plan: Plan) -> None:
    """Write a sealed plan atomically. Raises OSError."""
    made = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    facts = {"key": path.stem, "made": made, "plan": json.loads(plan.to_json())}
    write_sealed(path, facts, path.with_name(PARTIAL))
