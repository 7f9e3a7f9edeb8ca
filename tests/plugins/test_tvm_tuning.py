"""Tuning of TVM's kernels: what is searched, where it is kept, what an interruption or damage costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hub.cache.tuning import tuning_folder
from hub.config.options import resolve
from hub.errors import HubWarning, PluginError
from hub.planning.kernels import tune_kernels
from hub.plugin.backend import CompileSettings
from hub.plugin.graph import Cluster
from hub.testing.single import SETTINGS, whole_cluster
from hub.verification.verify import verify

pytest.importorskip("tvm")

from plugin_tvm import backend as backend_module
from plugin_tvm import tuning
from plugin_tvm.backend import create
from plugin_tvm.database import RECORDS, WORKLOAD, Database, state_of
from plugin_tvm.program import program_of
from plugin_tvm.settings import Settings
from plugin_tvm.target import host_target
from plugin_tvm.tuning import Task, next_task, tasks_of


def layers() -> tuple[Cluster, tuple[Any, ...]]:
    """Return two equal layers, and one that differs."""
    module = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 8))
    return whole_cluster(module.eval(), (torch.randn(16, 32),))


@pytest.fixture
def all_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search every kernel, however fast it is."""
    monkeypatch.setattr(tuning, "_measure_plain", lambda *_: None)


class Scan(nn.Module):
    """A running total of each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1)


def task(name: str, *, steps: float = 1e6, **known: Any) -> Task:
    return Task(name, module=None, count=1, steps=steps, **known)


# --- What is searched -------------------------------------------------------------------------------------------------


def test_each_structure_is_tuned_once() -> None:
    """Equal kernels, of one model or of several, are one task that counts as often as it runs."""
    cluster, _ = layers()
    modules = [program_of(cluster, is_parallel=False).module for _ in range(2)]
    found = [each for each in tasks_of(modules) if each.name.startswith("product")]
    assert sorted((each.count, each.steps) for each in found) == [(2, 16 * 32 * 8), (4, 16 * 32 * 32)]


def test_symbolic_sizes_are_not_tuned() -> None:
    """A search needs sizes that are numbers."""
    cluster, _ = whole_cluster(nn.Linear(32, 32), (torch.randn(16, 32),), dynamic=True)
    assert tasks_of([program_of(cluster, is_parallel=False).module]) == []


@pytest.mark.parametrize("rows", [1, 5])
def test_scans_are_not_tuned(rows: int) -> None:
    """Their loops are inside of one block."""
    cluster, _ = whole_cluster(Scan(), (torch.randn(rows, 128),))
    assert tasks_of([program_of(cluster, is_parallel=False).module]) == []


def test_untried_kernels_come_first_the_dearest_first() -> None:
    """Every kernel has its turn before one has its second."""
    tasks = [task("known", best_s=9.0, trials=16), task("small", steps=1e3), task("large")]
    found = next_task(tasks)
    assert found is not None
    assert found.name == "large"


def test_a_kernel_that_gains_nothing_waits() -> None:
    """Time goes to kernels that still become faster; without any it goes on with all; stuck ones are left alone."""
    weary = task("weary", best_s=9.0, trials=64, idle=tuning.WEARY)
    gaining = task("gaining", best_s=1.0, trials=16)
    stuck = task("stuck", is_stuck=True)
    assert next_task([weary, gaining, stuck]) is gaining
    assert next_task([weary, stuck]) is weary
    assert next_task([stuck]) is None


def test_the_budget_ends_the_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The clock is read between batches, and each step is reported with the best so far."""
    now = iter(range(100))
    told: list[str] = []

    def batch(each: Task, *_: Any) -> None:
        each.best_s, each.trials = 0.001, each.trials + 16

    monkeypatch.setattr(tuning, "_tune_batch", batch)
    monkeypatch.setattr(tuning, "_measure_plain", lambda *_: None)
    monkeypatch.setattr(Database, "best", lambda *_: None)
    tasks = [task("product")]
    database = Database(tmp_path, "target")
    tuning.tune(tasks, "target", database, budget_s=4.5, threads=1, say=told.append, clock=lambda: float(next(now)))
    assert told[0] == "product: 1 ms after 16 schedules; model 1 ms"
    assert len(told) == 3


def test_without_its_model_of_costs_nothing_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TVM runs without xgboost, and says what searching needs."""
    monkeypatch.setattr(backend_module, "find_spec", lambda name: None)
    with pytest.raises(PluginError, match="xgboost, which is not installed"):
        create(Settings(database=tmp_path)).tune([], SETTINGS, 1.0, lambda _: None)


# --- The database -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a database after one short search, and the search's messages."""
    root = tmp_path_factory.mktemp("tuned")
    cluster, _ = layers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "BATCH", 2)
        said = create(Settings(database=root)).tune([cluster], SETTINGS, 30.0, lambda _: None)
    return root, said


def copied(root: Path, to: Path) -> Path:
    """Return a copy of a database."""
    import shutil

    return Path(shutil.copytree(root, to / "copy"))


def test_a_search_finds_schedules(tuned: tuple[Path, str]) -> None:
    """All kernels of the model have one, and a line says so."""
    root, said = tuned
    assert "kernels tuned" in said
    assert not said.startswith("0 of")
    assert state_of(root) != ""


def test_what_is_found_lies_in_the_cache_that_settings_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`HUB_CACHE_DIR` says where tuned kernels are kept, too."""
    monkeypatch.setattr(tuning, "BATCH", 2)
    chosen = resolve({"backends": ["tvm"], "threads": 1}, {"HUB_CACHE_DIR": str(tmp_path)}, Path("/"))
    tune_kernels(nn.Linear(32, 32).eval(), (torch.randn(16, 32),), chosen, 10.0, lambda _: None)
    assert state_of(tuning_folder(tmp_path, "tvm")) != ""


def test_tuned_kernels_are_found_by_structure_and_right(tuned: tuple[Path, str]) -> None:
    """Another model with an equal layer has it tuned without a search."""
    backend = create(Settings(database=tuned[0]))
    cluster, values = whole_cluster(nn.Linear(32, 32), (torch.randn(16, 32),))
    executable = backend.compile(cluster, SETTINGS)
    assert executable.texts.tuned == executable.texts.kernels > 0
    with torch.no_grad():
        verify(cluster, "tvm", executable, values, None)


def test_the_price_is_the_tuned_one(tuned: tuple[Path, str], tmp_path: Path) -> None:
    """The backend predicts what tuning measured where it tuned all that is dear, and nothing elsewhere."""
    cluster, _ = layers()
    with_tuning = create(Settings(database=tuned[0])).estimate(cluster, SETTINGS)
    without = create(Settings(database=tmp_path)).estimate(cluster, SETTINGS)
    assert with_tuning is not None
    assert "as tuning measured" in with_tuning.detail
    assert without is None


def test_another_target_has_its_own_schedules(tuned: tuple[Path, str]) -> None:
    """What was measured with one number of threads says nothing about two."""
    cluster, _ = layers()
    executable = create(Settings(database=tuned[0])).compile(cluster, CompileSettings(threads=2))
    assert executable.texts.tuned == 0


def test_an_interrupted_line_costs_only_itself(tuned: tuple[Path, str], tmp_path: Path) -> None:
    """A run that was killed while it wrote leaves all whole lines."""
    root = copied(tuned[0], tmp_path)
    for path in root.glob(f"*/{RECORDS}"):
        path.write_bytes(path.read_bytes() + b'[0,[[["GetSBl')
    cluster, _ = layers()
    executable = create(Settings(database=root)).compile(cluster, SETTINGS)
    assert executable.texts.tuned == executable.texts.kernels


@pytest.mark.parametrize("name", [WORKLOAD, RECORDS])
def test_what_cannot_be_read_is_put_aside(tuned: tuple[Path, str], tmp_path: Path, name: str) -> None:
    """A damaged folder is renamed, with a warning that names it; the kernel is compiled as if it were untuned."""
    root = copied(tuned[0], tmp_path)
    for path in root.glob(f"*/{name}"):
        path.write_text("no JSON\n")
    cluster, values = layers()
    with pytest.warns(HubWarning, match="set aside as .*damaged0"):
        executable = create(Settings(database=root)).compile(cluster, SETTINGS)
    assert executable.texts.tuned == 0
    assert list(root.glob("*.damaged0"))
    assert state_of(root) == ""
    with torch.no_grad():
        verify(cluster, "tvm", executable, values, None)


@pytest.mark.usefixtures("all_is_searched")
def test_a_kernel_that_cannot_be_searched_costs_only_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """TVM's error about one is reported, and the search continues."""
    monkeypatch.setattr(Database, "opened", lambda *_: 1 / 0)
    cluster, _ = layers()
    said = create(Settings(database=tmp_path)).tune([cluster], SETTINGS, 30.0, lambda _: None)
    assert said.startswith("0 of")
    assert "ZeroDivisionError" in said


@pytest.mark.usefixtures("all_is_searched")
def test_interrupting_a_search_keeps_what_it_found(tmp_path: Path) -> None:
    """Ctrl-C ends the search after a batch, and the next process has that batch."""
    cluster, _ = layers()

    def stop(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(tuning, "BATCH", 2)
        create(Settings(database=tmp_path)).tune([cluster], SETTINGS, 30.0, stop)
    found = Database(tmp_path, host_target(1))
    kept = [found.best(each.module) for each in tasks_of([program_of(cluster, is_parallel=False).module])]
    assert sum(each is not None for each in kept) == 1


def test_what_is_near_the_bound_is_not_searched(tmp_path: Path) -> None:
    """Functions of elements are as fast in plain loops as memory is: that is measured and kept, and nothing else tried."""
    cluster, _ = whole_cluster(nn.ReLU(), (torch.randn(64, 64),))
    said = create(Settings(database=tmp_path)).tune([cluster], SETTINGS, 30.0, lambda _: None)
    assert said.startswith("1 of 1 kernels tuned, 0 schedules tried")
    assert state_of(tmp_path) != ""


def test_where_most_can_be_saved_comes_first() -> None:
    """What counts is the distance to the bound, not the seconds."""
    slow = task("slow", best_s=2e-3, least_s=0.9e-3)
    far = task("far", best_s=1.5e-3, least_s=0.1e-3)
    near = task("near", best_s=3e-3, least_s=2e-3)
    assert next_task([slow, far, near]) is far
    assert next_task([slow, near]) is slow
    assert next_task([near]) is None


def test_no_budget_no_search(tmp_path: Path) -> None:
    """With no time left nothing is tried, and what is known is reported."""
    cluster, _ = layers()
    assert ", 0 schedules tried" in create(Settings(database=tmp_path)).tune([cluster], SETTINGS, 0.0, lambda _: None)


def test_seconds_are_shown_as_milliseconds() -> None:
    """A kernel without a schedule has no time."""
    assert tuning.shown(0.00125) == "1.25 ms"
    assert tuning.shown(math.inf) == "nothing yet"
