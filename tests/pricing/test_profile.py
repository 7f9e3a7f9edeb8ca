"""The profile: measured in processes of its own, kept once, and used wherever this machine's abilities matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from hub.cache.measurements import Measurements, machine_digest
from hub.errors import WorkerError
from hub.plugin.graph import TensorSpec
from hub.pricing import roofline
from hub.pricing.profile import MIX_S, Profile, boundary_s, mixing_s, stored_profile
from hub.workers import profiling
from hub.workers.channel import Worker
from hub.workers.profiling import measure_profile
from tests.toys import toy

Install = Callable[[str, str], None]

PROFILE = Profile(
    threads=2,
    flops_s=8e10,
    bytes_s=2e10,
    call_s={"toy": 5e-6},
    copy_bytes_s=1e9,
    cast_bytes_s=2e9,
    mix_s={"eager+toy": 1e-4, "other+toy": 3e-4},
    made="2026-11-01T12:00:00+00:00",
    notes=("broken was left out: no such backend",),
)


def keep(root: Path, text: str) -> None:
    kept, _ = Measurements.open(root)
    kept.keep_profile(machine_digest(), 2, text)
    kept.close()


def measured(*backends: str, budget_s: float = 600.0) -> tuple[Profile, list[str]]:
    steps: list[str] = []
    return measure_profile(1, backends, steps.append, budget_s), steps


def test_a_profile_comes_back_equal(tmp_path: Path) -> None:
    """It is kept for this machine and this number of threads."""
    keep(tmp_path, PROFILE.to_json())
    assert stored_profile(tmp_path, 2) == PROFILE
    assert stored_profile(tmp_path, 1) is None


def test_looking_for_a_profile_makes_nothing(tmp_path: Path) -> None:
    """Estimates ask for it, and they may not touch the disk."""
    assert stored_profile(tmp_path / "cache", 2) is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", PROFILE.to_json().replace("1000000000.0", "0.0")])
def test_a_profile_that_cannot_be_read_counts_as_absent(tmp_path: Path, text: str) -> None:
    """Another version of the hub may have written it."""
    keep(tmp_path, text)
    assert stored_profile(tmp_path, 2) is None


def test_peaks_come_from_the_profile_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that each process estimates with the same numbers."""
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path))
    keep(tmp_path, PROFILE.to_json())
    monkeypatch.setattr(roofline, "_settled", {})
    roofline._own_peaks.cache_clear()
    try:
        assert roofline.peaks(2) == roofline.Peaks(8e10, 2e10)
        assert roofline.peaks(1) != roofline.peaks(2)
    finally:
        roofline._own_peaks.cache_clear()


def test_peaks_are_measured_where_settings_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake is reported where the setting is used, not here."""
    monkeypatch.setenv("HUB_THREADS", "two")
    monkeypatch.setattr(roofline, "_settled", {})
    roofline._own_peaks.cache_clear()
    assert roofline.peaks(1).flops_s > 0


def test_planning_keeps_the_peaks_that_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates of the next process rest on the same peaks, with a note that the rest is still to be measured."""
    monkeypatch.setattr(roofline, "_settled", {})
    kept, _ = Measurements.open(tmp_path)
    first = roofline.settle_peaks(kept, 1)
    assert roofline.peaks(1) == roofline.Peaks(first.flops_s, first.bytes_s)
    assert "hub doctor" in first.notes[0]
    assert stored_profile(tmp_path, 1) == first
    assert roofline.settle_peaks(kept, 1) == first


def test_a_boundary_reads_and_writes_each_byte_once() -> None:
    """4,000 bytes at 1 GB/s take 8 us."""
    assert boundary_s(PROFILE, TensorSpec.of(torch.empty(1000))) == pytest.approx(8e-6)


def test_mixing_is_looked_up_in_either_order() -> None:
    """A pair that was not measured costs as much as the worst measured one; a backend with itself costs nothing."""
    assert mixing_s(PROFILE, "toy", "eager") == mixing_s(PROFILE, "eager", "toy") == 1e-4
    assert mixing_s(PROFILE, "toy", "unknown") == 3e-4
    assert mixing_s(PROFILE, "toy", "toy") == 0.0
    assert mixing_s(replace(PROFILE, mix_s={}), "toy", "unknown") == MIX_S


def test_every_pair_is_timed(install_plugin: Install) -> None:
    """Each backend alone, each with eager, and each with each other one."""
    for name in ("aa", "bb", "cc"):
        install_plugin(name, toy(name))
    found, steps = measured("cc", "bb", "aa", "aa", "eager")
    assert set(found.call_s) == {"aa", "bb", "cc"}
    assert set(found.mix_s) == {"aa+eager", "bb+eager", "cc+eager", "aa+bb", "aa+cc", "bb+cc"}
    assert found.notes == ()
    assert found.threads == 1
    assert len(steps) == 1 + 2 * 3 + 3


def test_a_real_backend_is_measured() -> None:
    """Entering and leaving ONNX Runtime takes time."""
    found, _ = measured("onnxruntime")
    assert found.call_s["onnxruntime"] > 0
    assert min(found.flops_s, found.bytes_s, found.copy_bytes_s, found.cast_bytes_s) > 0
    assert found.notes == ()


FAILURES = {
    "raises": ({"compiling": "raise ValueError('odd')"}, "compile failed: ValueError: odd"),
    "dies": ({"compiling": "os._exit(3)"}, "the worker process died: exit status 3"),
    "refuses": ({"supports": "Support(False, 'too small')"}, "it does not support relu: too small"),
    "breaks": ({"supports": "1 / 0"}, "support failed: ZeroDivisionError"),
}


def test_a_backend_that_fails_is_left_out(install_plugin: Install) -> None:
    """Its note gives the reason; the others are measured."""
    for name, (facts, _) in FAILURES.items():
        install_plugin(name, toy(name, **facts))
    install_plugin("good", toy("good"))
    found, _ = measured(*FAILURES, "good", "absent")
    assert set(found.call_s) == {"good"}
    assert set(found.mix_s) == {"eager+good"}
    reasons = {name: reason for name, (_, reason) in FAILURES.items()} | {"absent": "no such backend"}
    for name, reason in reasons.items():
        assert any(note.startswith(f"{name} was left out: {reason}") for note in found.notes), found.notes
    assert len(found.notes) == len(reasons)


def test_a_backend_without_a_worker_is_left_out(install_plugin: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that starts no further process costs the others nothing."""

    def ask(worker: Worker, command: str, timeout_s: float, **facts: Any) -> Any:
        if facts.get("backend") == "bad":
            raise WorkerError("too many processes")
        return asked(worker, command, timeout_s, **facts)

    asked = Worker.ask
    monkeypatch.setattr(Worker, "ask", ask)
    for name in ("bad", "good"):
        install_plugin(name, toy(name))
    found, _ = measured("bad", "good")
    assert set(found.call_s) == {"good"}
    assert found.notes == ("bad was left out: too many processes",)


def test_an_interrupt_waits_for_no_compiler(install_plugin: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the processes that compile; it would wait for the slowest one else, here for ever."""
    monkeypatch.setattr(profiling, "_READY_LIMIT_S", 1e6)
    monkeypatch.setattr(profiling, "available_cores", lambda: 3)
    install_plugin("good", toy("good"))
    install_plugin("hanging", toy("hanging", compiling="import time; time.sleep(1e6)"))

    def interrupt(step: str) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_profile(1, ("good", "hanging"), interrupt)


def test_what_can_be_saved_is_compiled_once(install_plugin: Install, tmp_path: Path) -> None:
    """The process of a pair loads what the backend's own process compiled."""
    log = tmp_path / "log"
    note = f"open({str(log)!r}, 'a').write(cluster.name + ' ')"
    install_plugin("aa", toy("aa", compiling=note, saveable=True))
    for name in ("bb", "cc"):
        install_plugin(name, toy(name))
    found, _ = measured("bb", "cc", "aa")
    assert "aa+bb" in found.mix_s
    assert log.read_text().split() == ["relu", "linear"]


def test_pairs_beyond_the_budget_are_left_out(install_plugin: Install) -> None:
    """What each backend does alone is measured in any case."""
    for name in ("aa", "bb"):
        install_plugin(name, toy(name))
    found, _ = measured("aa", "bb", budget_s=0.0)
    assert set(found.call_s) == {"aa", "bb"}
    assert found.notes == ("no time was left for 1 pair of backends",)


def test_peaks_are_measured_before_workers_start_unless_they_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a cache folder has none, and not where it has some: a warm start measures nothing."""
    measured: list[int] = []
    monkeypatch.setattr(roofline, "first_peaks", measured.append)
    monkeypatch.setattr(roofline, "_settled", {})
    roofline.measure_early(tmp_path, 2)
    assert measured == [2]
    kept, _ = Measurements.open(tmp_path)
    kept.keep_profile(machine_digest(), 2, PROFILE.to_json())
    kept.close()
    roofline.measure_early(tmp_path, 2)
    assert measured == [2]
