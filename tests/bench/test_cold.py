"""A cold start: every moment of the wait is attributed to a cause, and the table names it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import hub
from hub.bench.cold import UNKNOWN, Cold, Start, kinds, lengths, shared_out
from hub.bench.cold_table import cold_text
from hub.bench.machine import Machine
from hub.cli.app import app
from hub.errors import HubWarning
from hub.frontend.ownership import phases_of
from hub.process.phases import MAX_PHASES, Phase, Phases, Work
from tests.toys import toy

MACHINE = Machine(cpu="x", cores=2, memory_bytes=1, system="s", python="3", libraries={}, load=0.0)
RECORD = (
    Phase(Work.DYNAMO, 0.0, 2.0),
    Phase(Work.GRAPH, 0.5, 1.5),
    Phase(Work.CAPTURE, 0.75, 1.25),
    Phase(Work.ANSWER, 1.75, 2.0),
    Phase(Work.PROCESS, 2.0, 4.0),
    Phase(Work.DECIDE, 4.0, 9.0),
    Phase(Work.ASK, 4.0, 5.0, "one"),
    Phase(Work.COMPILE, 5.0, 7.0, "one"),
    Phase(Work.COMPILE, 5.5, 6.5, "one"),
    Phase(Work.VERIFY, 6.0, 7.5, "two"),
    Phase(Work.COMPILE, 6.75, 7.25, "two"),
    Phase(Work.RACE, 7.5, 8.5),
    Phase(Work.BUILD, 9.5, 10.0),
    Phase(Work.LOAD, 9.5, 9.75, "one"),
)
HUB = Start(torch_s=3.0, hub_s=1.0, model_s=0.5, first_s=2.0, in_use_s=10.0, verified_s=12.0, phases=RECORD, plans=("one",))
INDUCTOR = Start(
    torch_s=3.0,
    first_s=4.0,
    in_use_s=4.0,
    phases=(Phase(Work.DYNAMO, 0.0, 4.0), Phase(Work.COMPILE, 1.0, 4.0, "inductor")),
)
COLD = Cold(
    model="toy",
    batch=None,
    options={"tune": "fast"},
    command="hub bench toy --cold",
    date="2026-11-27",
    machine=MACHINE,
    hub=HUB,
    inductor=INDUCTOR,
)
TABLES = """\
toy through the hub, cold: 10.0 s until the plan is in use (one)
the hub 63 %, compilers 22 %, PyTorch's capture 12 %, the model 2 %

phase                  of   seconds  of the wait
Dynamo                         2.00         0.75
AOTAutograd                    0.50         0.50
work on the graph              1.00         0.50
first run                      0.25         0.25
start of planning              2.00         2.00
import, what it takes  one     1.00         1.00
compile                one     2.00         2.00
load                   one     0.25         0.25
compile                two     0.50         0.25
verify                 two     1.50         0.25
race                           1.00         1.00
decide                         5.00         0.50
build the plan                 0.50         0.25
nothing of this                             0.50
all                                        10.00

torch.compile(backend='inductor'), cold: 4.0 s until the first answer
compilers 75 %, PyTorch's capture 25 %

phase            of        seconds  of the wait
Dynamo                        4.00         1.00
compile          inductor     3.00         3.00
nothing of this                            0.00
all                                        4.00

seconds            hub  inductor
import torch      3.00      3.00
import hub        1.00
build the model   0.50      0.00
first answer      2.00      4.00
second answer     0.00      0.00
plan in use      10.00
all verified     12.00"""


def test_the_table_has_a_row_for_each_phase_and_each_backend() -> None:
    """Seconds count once for a backend where several of its phases overlap; the wait adds up to the whole."""
    assert cold_text(COLD) == TABLES


def test_a_failure_of_inductor_is_one_line() -> None:
    """The hub's table stands for itself."""
    text = cold_text(COLD.model_copy(update={"inductor": Start(failure="no compiler")}))
    assert "torch.compile(backend='inductor') failed: no compiler" in text


def test_every_moment_is_somebodys_once() -> None:
    """The shares of the wait add up to it, whatever overlaps, and what ends later counts as far as the wait goes."""
    phases = (*RECORD, Phase(Work.VERIFY, 9.0, 30.0, "late"))
    shares = shared_out(phases, 10.0)
    assert sum(shares.values()) == pytest.approx(10.0)
    assert shares[Work.VERIFY, "late"] == pytest.approx(0.75)  # the load goes first
    assert (UNKNOWN, "") not in shares
    assert lengths(phases, 10.0)[Work.VERIFY, "late"] == pytest.approx(1.0)
    assert sum(kinds(HUB).values()) == pytest.approx(1.0)


def test_a_cold_start_goes_through_json_unchanged() -> None:
    """What was measured can be kept, and read again."""
    assert Cold.model_validate_json(COLD.to_json()) == COLD


def test_a_record_has_an_end() -> None:
    """Rebuilding a plan forever does not fill memory with it."""
    phases = Phases()
    phases.add([Phase(Work.BUILD, 0.0, 1.0)] * (MAX_PHASES - 1))
    for _ in range(3):
        with phases.during(Work.LOAD):
            pass
    assert len(phases.found) == MAX_PHASES


@pytest.mark.parametrize("start", ["wait", "eager"])
def test_a_plan_says_what_making_it_took(start: str) -> None:
    """Each backend that was tried has compiled, loaded and been verified, in the time of planning."""
    model, x = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)).eval(), torch.randn(2, 16)
    options = {"start": start, "backends": ["onnxruntime", "openvino"], "tune": "fast", "budget_s": 3.0}
    began_s = time.monotonic()
    with torch.no_grad():
        run = torch.compile(model, backend="hub", options=options)
        run(x)
        assert hub.wait(run)
    phases = phases_of(run)
    assert all(began_s <= phase.began_s <= phase.ended_s <= time.monotonic() for phase in phases)
    tried = {phase.who for phase in phases if phase.work is Work.WAIT}
    assert tried
    for backend in tried:
        works = {phase.work for phase in phases if phase.who == backend}
        assert works >= {Work.ASK, Work.COMPILE, Work.LOAD, Work.VERIFY, Work.SAVE, Work.CHECK, Work.TIME, Work.START}
    whole = {phase.work for phase in phases if not phase.who}
    assert whole >= {Work.CAPTURE, Work.GRAPH, Work.ANSWER, Work.RACE, Work.DECIDE, Work.KEEP, Work.BUILD}
    assert (Work.PROCESS in whole) == (start == "eager")
    assert sum(shared_out(phases, time.monotonic()).values()) > 0


def test_a_backend_that_cannot_compile_has_its_time(install_plugin: Callable[[str, str], None]) -> None:
    """The time of a failure is the compiler's: no event says how much of it was."""
    install_plugin("toy", toy(compiling="raise ValueError('no')"))
    run = torch.compile(nn.Linear(8, 8), backend="hub", options={"start": "wait", "backends": ["toy"], "budget_s": 2.0})
    with torch.no_grad(), pytest.warns(HubWarning, match="compile failed: ValueError: no"):
        run(torch.randn(2, 8))
    assert [phase for phase in phases_of(run) if phase.work is Work.COMPILE and phase.who == "toy"]


MODELS = """
import torch
class Values(torch.nn.Module):
    def forward(self, x): return x.nonzero()
def values(): return Values(), (torch.ones(2, 4),)
def tiny(): return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.ones(2, 4),)
"""


def bench(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "models.py").write_text(MODELS)
    script = "import sys; from hub.cli import main; sys.argv[0] = 'hub'; main()"
    command = [sys.executable, "-c", script, "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)


@pytest.mark.slow
def test_a_model_that_is_not_captured_says_so(tmp_path: Path) -> None:
    """There is no table of it, and the message names the cause and the place."""
    found = bench(tmp_path, "models.py:values", "--cold")
    assert found.returncode == 1
    assert "nothing of the model was captured" in found.stderr
    assert "models.py:4 in forward" in found.stderr
    assert not found.stdout


@pytest.mark.slow
def test_a_cold_start_prints_its_tables_and_writes_json(tmp_path: Path) -> None:
    """The caches are empty, so that the backend compiles, and Inductor does."""
    place = tmp_path / "cold.json"
    given = ("--cold", "--json", str(place), "--backends", "onnxruntime", "--budget", "3", "--threads", "1")
    found = bench(tmp_path, "models.py:tiny", *given)
    assert found.returncode == 0, found.stderr
    cold = Cold.model_validate(json.loads(place.read_text()))
    assert found.stdout.strip() == cold_text(cold)
    assert {phase.who for phase in cold.hub.phases if phase.work is Work.COMPILE} == {"onnxruntime"}
    assert {phase.who for phase in cold.inductor.phases if phase.work is Work.COMPILE} == {"inductor"}
    assert cold.hub.first_s <= cold.hub.in_use_s <= (cold.hub.verified_s or 0.0)
    assert all(0.0 <= phase.began_s <= phase.ended_s for phase in cold.hub.phases)


NOT_COLD = (("--against", "eager"), ("--warm",), ("--rounds", "15"), ("--batches", "2"), ("--output", "hub-bench"))


@pytest.mark.parametrize("flag", [*NOT_COLD, ("--models", "mlp")])
def test_flags_that_mean_nothing_to_a_cold_start_are_errors(flag: tuple[str, ...]) -> None:
    """They are reported before anything runs."""
    found = CliRunner().invoke(app, ["bench", "mlp", "--cold", *flag])
    assert found.exit_code == 2
    assert f"{flag[0]} cannot be combined" in found.stderr
