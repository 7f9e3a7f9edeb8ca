"""No plugin can hurt the user: whatever one does, the answer is eager's, the report names it, the process is unharmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests import slices
from tests.hostile import hub_hostile
from tests.hostile.faults import ALL, BEFORE_PLANNING, BY_NAME, SLOW_ACTS, STEPS, Fault
from tests.hostile.harness import (
    DRIVER,
    PLUGINS,
    Case,
    Outcome,
    cases_of,
    is_said,
    problems,
    problems_of,
    run_cases,
    tried_again,
)

MODELS = ("bert", "resnet")
TUNES = ("off", "fast")
LONG = pytest.mark.timeout(3600)
"""The faults that hang do so until a limit, each of them twice."""


def group(step: str) -> list[Fault]:
    """Return the faults of one step."""
    return [fault for fault in ALL if fault.step == step]


def check(outcomes: Sequence[Outcome]) -> None:
    """Fail with every broken promise of every case."""
    found = problems(outcomes)
    assert not found, f"{len(found)} broken promises:\n  " + "\n  ".join(found)


# --- Every fault: a slice of them each commit, all in turn --------------------------------------------------------------


def before_planning() -> Iterator[Any]:
    """Yield every fault that a process meets once, in both models."""
    for fault in ALL:
        if fault.step in BEFORE_PLANNING:
            for model, tune in zip(MODELS, TUNES, strict=True):
                yield pytest.param(fault, model, tune, id=f"{fault.name}-{model}-{tune}")


def while_planning(*, saves: bool) -> dict[str, list[list[Case]]]:
    """Return every other fault in both tuning modes, for each model as many parts as there are slices.

    Faults that hang are dealt out first, so that no part has many; the rest keep their order, so that a part has faults of
    every step.
    """
    steps = ("compile", "save", "load", "run") if saves else STEPS
    parts: dict[str, list[list[Case]]] = {}
    for model in MODELS:
        faults = [fault for step in steps if step not in BEFORE_PLANNING for fault in group(step)]
        faults.sort(key=lambda fault: fault.act not in SLOW_ACTS)
        cases = [case for tune in TUNES for case in cases_of(faults, model, tune, saves=saves)]
        parts[model] = [cases[first :: slices.SLICES] for first in range(slices.SLICES)]
    return parts


def drawn_parts(*, saves: bool) -> list[Any]:
    """Return the parts of each model as parameters, of which all but this commit's are marked slow."""
    found: list[Any] = []
    for model, parts in while_planning(saves=saves).items():
        found += slices.drawn(pytest.param(part, id=f"{model}-{number}") for number, part in enumerate(parts))
    return found


@LONG
@pytest.mark.parametrize(("fault", "model", "tune"), slices.drawn(before_planning()))
def test_every_fault_before_planning_is_survived(
    fault: Fault, model: str, tune: str, install_plugin: Any, tmp_path: Path
) -> None:
    """A plugin that cannot be imported, registered, created or probed is left out, and the report says why."""
    check(run_cases([Case(fault, model, tune)], tmp_path, install_plugin))


@LONG
@pytest.mark.parametrize("cases", drawn_parts(saves=False))
def test_every_fault_is_survived(cases: Sequence[Case], install_plugin: Any, tmp_path: Path) -> None:
    """The model gives eager's answer before and after, the report says what happened, and nothing is left behind."""
    check(run_cases(cases, tmp_path, install_plugin))


@LONG
@pytest.mark.parametrize("cases", drawn_parts(saves=True))
def test_every_fault_is_survived_where_executables_are_saved(
    cases: Sequence[Case], install_plugin: Any, tmp_path: Path
) -> None:
    """The same for a plugin whose executables cross from a worker to the user's process through files."""
    check(run_cases(cases, tmp_path, install_plugin))


def test_every_fault_has_its_turn_in_every_model_and_way_of_planning() -> None:
    """Over all parts, each case occurs once, and no part has many faults that hang."""
    for saves in (False, True):
        steps = ("compile", "save", "load", "run") if saves else [step for step in STEPS if step not in BEFORE_PLANNING]
        wanted = [
            str(case)
            for model, tune in product(MODELS, TUNES)
            for step in steps
            for case in cases_of(group(step), model, tune, saves=saves)
        ]
        for_model = while_planning(saves=saves)
        parts = [part for parts in for_model.values() for part in parts]
        assert sorted(wanted) == sorted(str(case) for part in parts for case in part)
        assert all(len(parts) == slices.SLICES for parts in for_model.values())
        assert max(sum(case.fault.act in SLOW_ACTS for case in part) for part in parts) <= 2


# --- Memory, company, tools -------------------------------------------------------------------------------------------


WAYS = [pytest.param(model, tune) for model, tune in product(MODELS, TUNES)]


@pytest.mark.parametrize(("model", "tune"), slices.drawn(WAYS, first=10))
def test_the_next_process_does_not_try_again(model: str, tune: str, install_plugin: Any, tmp_path: Path) -> None:
    """A candidate that failed is not tried by a later process with the same cache, which still says why."""
    names = ("compile_hang", "compile_segfault", "compile_raise", "run_exit", "run_wrong_element", "run_wrong_shape")
    cases = cases_of([BY_NAME[name] for name in names], model, tune, again=False)
    cache = tmp_path / "cache"
    first = run_cases(cases, tmp_path, install_plugin, cache)
    second = run_cases(cases, tmp_path, None, cache)
    check([*first, *second])
    assert all(outcome.case.fault.step in journal(outcome) for outcome in first)
    found = [text for outcome in second for text in tried_again(outcome, outcome.facts, "next process")]
    assert not found, "\n".join(found)


def journal(outcome: Outcome) -> str:
    """Return the steps that were taken."""
    return "\n".join(outcome.facts["journal"])


BESIDE_OTHERS = ("compile_segfault", "compile_hang", "run_wrong_value", "support_segfault", "run_exit")


@pytest.mark.parametrize("name", slices.drawn(BESIDE_OTHERS, first=14))
def test_other_backends_lose_nothing(name: str, install_plugin: Any, tmp_path: Path) -> None:
    """Next to a good backend, the hostile one fails alone: the good one is compiled and timed as usual."""
    (outcome,) = run_cases(cases_of([BY_NAME[name]], "resnet", "fast", again=False), tmp_path, install_plugin)
    check([outcome])
    assert "decent" in outcome.facts["contenders"]


COMMAND = "import sys; from hub.cli import main; sys.argv[0] = 'hub'; sys.exit(main())"


REFUSED = [fault.name for fault in ALL if fault.step in BEFORE_PLANNING and fault.is_refused]


@pytest.mark.parametrize("name", slices.drawn(REFUSED, first=10))
def test_listing_survives(name: str, install_plugin: Callable[[str, str], None], tmp_path: Path) -> None:
    """`hub list-backends --probe` shows the other backends, and what went wrong with this one.

    Only this command probes: planning does not, so that faults of probes are reported here alone.
    """
    for plugin in PLUGINS:
        install_plugin(plugin, DRIVER.with_name(f"hub_{plugin}.py").read_text())
    orders = {"fault": name, "journal": str(tmp_path / "journal"), "scratch": str(tmp_path), "saveable": False, "user": 0}
    (tmp_path / "site" / "hostile.json").write_text(json.dumps(orders))
    path = ":".join([str(tmp_path / "site"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "list-backends", "--probe", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**_environment(tmp_path), "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    listed = {item["name"]: item for item in json.loads(done.stdout)}
    assert listed["decent"]["available"]
    assert not listed["hostile"]["available"]
    assert is_said(BY_NAME[name], listed["hostile"]["reason"]), listed["hostile"]["reason"]


def _environment(folder: Path) -> dict[str, str]:
    own = {"HUB_CACHE_DIR": str(folder / "cache"), "HUB_WORKERS_MEMORY_LIMIT_GB": "1.5"}
    return {**os.environ, **own, "OMP_NUM_THREADS": "1"}


# --- The harness itself -----------------------------------------------------------------------------------------------


def test_there_are_enough_faults_at_every_step() -> None:
    """At least a hundred faults over all steps, each with a name of its own, and the plugin can do what each is about."""
    assert len(ALL) >= 100
    assert len(BY_NAME) == len(ALL)
    assert {fault.step for fault in ALL} == set(STEPS)
    source = Path(hub_hostile.__file__).read_text()
    for fault in ALL:
        act = fault.act.removeprefix("later_")
        assert act in hub_hostile.ACTS or f'"{act}"' in source, fault.name


def test_a_good_plugin_has_no_problems(install_plugin: Any, tmp_path: Path) -> None:
    """Without a fault, the plugin is trusted and used: what the other tests observe is the faults' doing."""
    none = Fault("none", "", is_refused=False)
    outcomes = run_cases([Case(none, "bert", "off"), Case(none, "resnet", "off", saves=True)], tmp_path, install_plugin)
    check(outcomes)
    assert ["hostile" in outcome.facts["backends"] for outcome in outcomes] == [True, True]


FACTS = {"wrong": [], "changed": [], "harmed": [], "backends": ["eager"], "journal": ["compile 2"]}
EVENT = {"backend": "hostile", "stage": "compile", "message": "killed by SIGSEGV"}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, ""),
        ({"wrong": ["call 0: output 0 is wrong"]}, "output 0 is wrong"),
        ({"changed": ["threads: 1 -> 3"]}, "threads"),
        ({"harmed": ["weights"]}, "weights"),
        ({"backends": ["hostile"]}, "part of the plan"),
        ({"events": []}, "does not say"),
        ({"journal": ["compile 1"]}, "in the user's process"),
        ({"raised": "SystemExit: "}, "reached the user"),
    ],
)
def test_the_harness_sees_each_broken_promise(facts: dict[str, Any], said: str) -> None:
    """What is not as promised is reported; what is as promised is not."""
    outcome = Outcome(Case(BY_NAME["compile_segfault"], "bert", "off"), {**FACTS, "events": [EVENT], **facts}, user=1)
    found = list(problems_of(outcome))
    assert (len(found), said in "".join(found)) == (1 if said else 0, True)


def test_the_harness_sees_what_becomes_of_processes() -> None:
    """A process that died, one that was left running, and a second try are reported."""
    case = Case(BY_NAME["compile_segfault"], "bert", "off")
    again = {**FACTS, "events": [EVENT]}
    dead = Outcome(case, {}, "killed by SIGSEGV")
    left = Outcome(case, {**again}, user=1, left=["compile in process 5"])
    tried = Outcome(case, {**again, "again": again}, user=1)
    texts = [" ".join(problems_of(outcome)) for outcome in (dead, left, tried)]
    assert ["did not survive" in texts[0], "left running" in texts[1], "tried again" in texts[2]] == [True] * 3
