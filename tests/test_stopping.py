"""Programs that are stopped while the hub plans or verifies in them: they end, and leave no process or folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PATIENT = """
import os, threading
from pathlib import Path
from hub import Backend, BackendInfo, Executable, Support, hookimpl

def wait_at(moment):
    folder = Path(os.environ["FOLDER"])
    if (folder / moment).exists():
        (folder / f"{moment} is reached").touch()
        threading.Event().wait()

@hookimpl
def hub_backends():
    return [BackendInfo(name="patient", factory="hub_patient:Patient", summary="")]

class Patient(Backend):
    def supports(self, node):
        return Support(accepted=True)

    def compile(self, cluster, settings):
        wait_at("compiling")
        return Run(cluster.module)

    def load(self, folder, cluster, settings):
        return Run(cluster.module)

class Run(Executable):
    def __init__(self, module):
        self.module = module

    def __call__(self, *inputs):
        wait_at("timing clusters")
        if os.nice(0) > 0:  # the process that verifies after the first answer steps back
            wait_at("verifying")
        return self.module(*inputs)

    def save(self, folder):
        (folder / "nothing").touch()
"""
"""A backend that stops forever at a moment if a file of its name exists: in a compiler, or in a call."""

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch
from torch import nn
import hub

folder = Path(os.environ["FOLDER"])

class Told:
    "Standard error on which the hub's progress is: from the end of compiling on, the plugin stops in its next call."
    def write(self, text):
        if "compiling" in text and "hub, graph0" in text and (folder / "wanted").exists():
            (folder / "timing clusters").touch()
        return sys.__stderr__.write(text)
    def flush(self):
        sys.__stderr__.flush()
sys.stderr = Told()

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4), nn.Softmax(-1)).eval()

torch.set_grad_enabled(False)
model, x = net(), torch.randn(16, 8)

def compiled(**options):
    return torch.compile(model, backend="hub", options={"budget_s": 300, **options})

def check(call):
    torch.testing.assert_close(call(x), model(x))
    assert set(hub.plans(call)[0].backends) & {"disc", "onnxruntime"}, hub.plans(call)[0]
    print("right", flush=True)
"""
END_S = 60.0
"""Seconds after which a process counts as left: the hub's notice within a moment that their parent is gone."""
REACH_S = 240.0


@dataclass(frozen=True)
class Program:
    """A user's running program, in a process group of its own, as a terminal starts it."""

    process: subprocess.Popen[str]
    folder: Path
    marker: str

    def await_moment(self, moment: str) -> None:
        """Wait until the plugin has reached a moment. Raise AssertionError if the program ends first."""
        end_s = time.monotonic() + REACH_S
        while not (self.folder / f"{moment} is reached").exists():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end_s, f"{moment} is not reached"
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal as a terminal or a supervisor does: to the whole process group."""
        os.killpg(self.process.pid, number)

    def end(self) -> tuple[int, str, str]:
        """Return exit status, output and errors. Raise if the program does not end."""
        output, errors = self.process.communicate(timeout=REACH_S)
        return self.process.returncode, output, errors

    def pids(self) -> list[int]:
        """Return the ids of the program and of all processes that it started, by a variable that they inherit."""
        return [int(process.name) for process in Path("/proc").glob("[0-9]*") if self._is_ours(process)]

    def _is_ours(self, process: Path) -> bool:
        try:
            return self.marker.encode() in (process / "environ").read_bytes()
        except OSError:
            return False  # it has ended, or is another user's

    def processes(self) -> list[str]:
        """Return their command lines."""
        found: list[str] = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def left_behind(self) -> list[str]:
        """Return which of its processes still run; wait for one that has only just seen its parent's end."""
        end_s = time.monotonic() + END_S
        while (found := self.processes()) and time.monotonic() < end_s:
            time.sleep(0.05)
        return found

    @property
    def temporary(self) -> list[str]:
        """Return the hub's own folders that remain among the program's temporary files."""
        return sorted(path.name for path in (self.folder / "tmp").glob("hub-*"))


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path, install_plugin: Any) -> Iterator[Start]:
    """Return `start(program, moment)`, which runs a program that the plugin holds at a moment; all with one cache."""
    install_plugin("patient", PATIENT)
    (tmp_path / "tmp").mkdir()
    started: list[Program] = []

    def run(program: str, moment: str = "") -> Program:
        for name in ("compiling", "timing clusters", "verifying", "wanted"):
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / f"{name} is reached").unlink(missing_ok=True)
        if moment:
            (tmp_path / ("wanted" if moment == "timing clusters" else moment)).touch()
        file, marker = tmp_path / "program.py", uuid.uuid4().hex
        file.write_text(PROGRAM + textwrap.dedent(program))
        own = {"FOLDER": str(tmp_path), "TMPDIR": str(tmp_path / "tmp"), "HUB_PROGRESS": "plain", "STOPPING": marker}
        environment = {**os.environ, **own, "PYTHONPATH": str(tmp_path / "site")}
        environment.pop("HUB_BACKGROUND")
        process = subprocess.Popen(
            [sys.executable, str(file)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(Program(process, tmp_path, marker))
        return started[-1]

    yield run
    for program in started:
        if program.process.poll() is None:
            program.process.kill()
            program.process.communicate()


PLANS = """
    call = compiled(tune="fast", backends=("disc", "onnxruntime", "patient"), force={force})
    try:
        call(x)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        {then}
"""
HELD = PLANS.format(then="raise", force={"aten.gelu": "patient"})
"""The options force the plugin: else it may not be worth trying, and nothing holds the program."""


def test_an_interruption_while_planning_ends_the_program(start: Start) -> None:
    """Ctrl-C reaches the user's code at once; no worker, and none of the hub's temporary folders, outlives the program."""
    program = start(HELD, "compiling")
    program.await_moment("compiling")
    assert len(program.processes()) > 3, "workers run"
    assert program.temporary
    program.signal(signal.SIGINT)
    status, output, errors = program.end()
    assert (status, output) == (-signal.SIGINT, "interrupted\n"), errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors
    assert "Exception ignored" not in errors, errors
    assert program.left_behind() == []
    assert program.temporary == []


def test_a_session_that_interrupts_planning_goes_on(start: Start) -> None:
    """In a notebook, the same compiled model is planned at its next call, as if nothing had happened."""
    again = "(folder / 'timing clusters').unlink(); check(call)"
    program = start(PLANS.format(then=again, force={}), "timing clusters")
    program.await_moment("timing clusters")
    (program.folder / "wanted").unlink()
    program.signal(signal.SIGINT)
    status, output, errors = program.end()
    assert (status, output) == (0, "interrupted\nright\n"), errors
    assert program.left_behind() == []
    assert program.temporary == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_program_that_is_killed_while_planning_leaves_nothing(number: signal.Signals, start: Start) -> None:
    """Workers notice the end of their parent; the next process, with the same cache, plans and is right."""
    program = start(HELD, "compiling")
    program.await_moment("compiling")
    assert len(program.processes()) > 3, "workers run"
    assert program.temporary
    program.signal(number)
    status, output, errors = program.end()
    assert (status, output) == (-number, ""), errors
    assert program.left_behind() == []
    assert program.temporary == []
    following = start("check(compiled(tune='fast', backends=('disc', 'onnxruntime')))")
    status, output, errors = following.end()
    assert (status, output) == (0, "right\n"), errors
    assert following.left_behind() == []


@pytest.mark.parametrize(
    "number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["end", "SIGINT", "SIGTERM", "SIGKILL"]
)
def test_a_program_that_ends_beside_its_planning_leaves_nothing(number: signal.Signals | None, start: Start) -> None:
    """If first calls answer in eager, the planning process, its workers and its folders end with the program."""
    program = start(
        """
        forced = {"aten.gelu": "patient"}  # else it may not be worth trying
        call = compiled(tune="fast", backends=("disc", "onnxruntime", "patient"), start="eager", force=forced)
        torch.testing.assert_close(call(x), model(x))
        assert not hub.wait(call, 0.0)
        print("answered", flush=True)
        while not (folder / "compiling is reached").exists():
            time.sleep(0.01)
        if (folder / "stays").exists():
            hub.wait(call)
        """,
        "compiling",
    )
    if number is not None:
        (program.folder / "stays").touch()
    program.await_moment("compiling")
    if number is not None:
        program.signal(number)
    status, output, errors = program.end()
    assert (status, output) == (-(number or 0), "answered\n"), errors
    assert program.left_behind() == []
    assert program.temporary == []


def test_an_interruption_of_further_verification_stops_it_for_nobody(start: Start) -> None:
    """Ctrl-C in `hub.wait` reaches the user; the program then ends during verification, and leaves no worker or sample."""
    program = start(
        """
        forced = {"aten.linear": "onnxruntime", "aten.gelu": "patient"}
        call = compiled(tune="off", backends=("onnxruntime", "patient"), force=forced)
        check(call)
        try:
            hub.wait(call)
        except KeyboardInterrupt:
            assert not hub.wait(call, 0.0)
            print("interrupted", flush=True)
            raise SystemExit(3)
        """,
        "verifying",
    )
    program.await_moment("verifying")
    program.signal(signal.SIGINT)
    status, output, errors = program.end()
    assert (status, output) == (3, "right\ninterrupted\n"), errors
    assert program.left_behind() == []
    assert program.temporary == []


def test_what_was_killed_with_all_its_workers_is_tidied_up_by_the_next_process(start: Start) -> None:
    """No process is left to do so at once; a living process's folder stays, however old it is."""
    program = start(HELD, "compiling")
    program.await_moment("compiling")
    (folder,) = program.temporary
    owner = program.folder / "tmp" / folder / "owner"
    _kill_all(program)
    assert program.left_behind() == []
    assert program.temporary == [folder]
    os.utime(owner, (0, 0))
    living = start(HELD, "compiling")
    living.await_moment("compiling")
    (own,) = living.temporary
    assert own != folder, "the first thing that the next process does is to remove what nobody owns"
    os.utime(living.folder / "tmp" / own / "owner", (0, 0))
    following = start("check(compiled(tune='fast', backends=('disc', 'onnxruntime')))")
    assert following.end()[:2] == (0, "right\n")
    assert following.temporary == [own]
    living.signal(signal.SIGTERM)
    living.end()
    assert living.left_behind() == []


def _kill_all(program: Program) -> None:
    """Stop each process before any is killed, so that none sees another end."""
    found = [process for process in program.pids() if process != os.getpid()]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            os.kill(pid, number)
    program.end()
