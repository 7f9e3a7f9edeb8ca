"""`hub doctor`: what is installed, whether it works, and what the machine can do, in one screen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hub.cache.database import DATABASE
from hub.cache.measurements import Measurements
from hub.cli import doctor
from hub.cli.app import app
from hub.discovery.listing import ListedBackend, list_backends
from hub.pricing.profile import Profile, stored_profile
from hub.workers.profiling import measure_profile

TOY = ListedBackend(
    "toy", "hub-toy", "1.2", "toylib", "3.4", True, "", "", ("cpu",), (), ("float32",), 2, False, False, True
)
EAGER = replace(TOY, name="eager", library="torch", library_version="2.13.0")
TOY_PASSED = replace(TOY, probe="passed")
TOY_FAILED = replace(TOY, probe="relu gave 7", available=False, reason="the probe failed: relu gave 7")
TOY_MISSING = replace(
    TOY, available=False, reason="toylib is not installed", install="pip install toylib", library_version=None
)
PROFILE = Profile(
    threads=2,
    flops_s=8e10,
    bytes_s=2e10,
    call_s={"toy": 5e-6},
    copy_bytes_s=1 << 31,
    cast_bytes_s=3 << 30,
    mix_s={"eager+toy": 1e-4},
    made="2026-11-01T12:00:00+00:00",
    notes=("slow was left out: no answer within 90 s",),
)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every command in an empty folder with an empty cache, and let measuring take no time."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "measure_profile", measured)
    listing(monkeypatch, TOY_PASSED)


def measured(threads: int, backends: list[str], advance: Any) -> Profile:
    return replace(PROFILE, threads=threads, call_s=dict.fromkeys(backends, 5e-06))


def listing(monkeypatch: pytest.MonkeyPatch, *backends: ListedBackend) -> None:
    def listed(*, probe: bool) -> tuple[ListedBackend, ...]:
        assert probe
        return (*backends, EAGER)

    monkeypatch.setattr(doctor, "list_backends", listed)


def run(*arguments: str, status: int = 0) -> str:
    found = CliRunner().invoke(app, ["doctor", *arguments])
    assert found.exit_code == status, found.output
    return found.stdout


def facts(*arguments: str, status: int = 0) -> dict[str, Any]:
    return json.loads(run("--json", *arguments, status=status))


def test_one_screen_says_it_all() -> None:
    """Versions, backends, cache, peaks, and what mixing costs."""
    text = run("--threads", "2")
    lines = text.splitlines()
    assert lines[0].startswith("hub       ")
    assert "peaks     80 Gflop/s in float32 products, 20.0 GB/s in copies" in lines
    assert "boundary  977 us for a layout change of 1 MiB, 977 us to float16 and back" in lines
    assert "toy       5.00 us            -        +100 us" in lines
    assert "note: slow was left out: no answer within 90 s" in lines
    assert len(lines) < 24
    assert max(map(len, lines)) < 160


def test_the_profile_is_kept_for_its_number_of_threads(tmp_path: Path) -> None:
    """Planning finds it in the active cache folder."""
    run("--threads", "3", "--cache-dir", str(tmp_path / "other"))
    kept = stored_profile(tmp_path / "other", 3)
    assert kept is not None
    assert kept.threads == 3
    assert stored_profile(tmp_path / "other", 2) is None
    assert not (tmp_path / "cache").exists()


def test_only_backends_that_passed_their_probe_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or broken one is not measured, nor eager twice."""
    listing(monkeypatch, TOY_PASSED, replace(TOY_FAILED, name="bad"), replace(TOY_MISSING, name="gone"))
    assert set(facts(status=1)["profile"]["call_s"]) == {"toy"}


def test_looking_changes_nothing(tmp_path: Path) -> None:
    """`--no-measure` makes no file, and says that there is no profile."""
    assert "has not been measured with this number of threads" in run("--no-measure")
    assert facts("--no-measure")["profile"] is None
    assert not (tmp_path / "cache").exists()


def test_looking_shows_what_was_measured_before() -> None:
    """It shows the profile that planning uses."""
    run("--threads", "2")
    assert facts("--no-measure", "--threads", "2")["profile"]["flops_s"] == 8e10


def test_what_was_measured_is_shown_even_if_it_cannot_be_kept(tmp_path: Path) -> None:
    """A file in place of the folder stands for a disk that takes nothing."""
    (tmp_path / "cache").write_text("")
    found = facts("--threads", "2")
    assert found["profile"]["flops_s"] == 8e10
    assert "measurements last only as long as this process" in " ".join(found["cache"]["notes"])


def test_a_backend_that_fails_its_probe_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 1, for scripts; the table gives the reason."""
    listing(monkeypatch, TOY_FAILED)
    assert "the probe failed: relu gave 7" in run(status=1)
    assert facts(status=1)["is_healthy"] is False


def test_a_backend_that_is_not_installed_is_no_illness(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table says what installs it."""
    listing(monkeypatch, TOY_MISSING)
    assert "toylib is not installed; to fix it: pip install toylib" in run()
    assert facts()["is_healthy"] is True


def test_the_cache_is_described(tmp_path: Path) -> None:
    """The line has its path, its size, whether it is writable, and the number of measurements."""
    run()
    (tmp_path / "cache" / "large").write_bytes(b"x" * 3_000_000)
    cache = facts("--no-measure")["cache"]
    assert cache["folder"] == str(tmp_path / "cache")
    assert cache["nbytes"] > 3_000_000
    assert (cache["is_writable"], cache["measurements"], cache["notes"]) == (True, 0, [])


def test_a_store_that_was_set_aside_is_mentioned(tmp_path: Path) -> None:
    """It is mentioned once, with its new name."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / DATABASE).write_text("no database at all" * 100)
    (tmp_path / "cache" / DATABASE).chmod(0o600)
    (note,) = facts()["cache"]["notes"]
    assert f"set aside as {DATABASE}.broken-1" in note
    assert Measurements.open(tmp_path / "cache")[1] == ""


def test_a_cache_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    """The measurement is lost, and the line says what to do."""
    (tmp_path / "file").write_text("")
    text = run("--cache-dir", str(tmp_path / "file" / "cache"))
    assert "NOT WRITABLE: set HUB_CACHE_DIR to a folder that you own" in text
    assert "measurements last only as long as this process" in text


def test_the_settings_in_force_are_named(tmp_path: Path) -> None:
    """Each has its source."""
    Path("hub.toml").write_text("threads = 2\n")
    found = facts()
    assert found["settings_file"] == str(tmp_path / "work" / "hub.toml")
    from_tests = {"cache.dir": "HUB_CACHE_DIR", "background": "HUB_BACKGROUND", "start": "HUB_START"}
    assert found["settings"] == {"threads": str(tmp_path / "work" / "hub.toml"), **from_tests}
    assert found["threads"] == 2


def test_a_wrong_flag_is_one_message() -> None:
    """This holds for every command."""
    found = CliRunner().invoke(app, ["doctor", "--threads", "two"])
    assert found.exit_code == 2
    assert "option 'threads' (from the command line) must be a whole number" in found.stderr


def test_a_missing_compiler_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says what installs one."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert "none; inductor needs one: apt-get install g++, or set CXX" in run("--no-measure")


@pytest.mark.slow
def test_the_real_thing_measures_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first-party backend works here and has its price of a call."""
    monkeypatch.setattr(doctor, "measure_profile", measure_profile)
    monkeypatch.setattr(doctor, "list_backends", list_backends)
    found = facts("--threads", "1")
    assert found["is_healthy"]
    assert set(found["profile"]["call_s"]) >= {"inductor", "onnxruntime", "openvino"}
    assert found["profile"]["flops_s"] > 0
    assert found["compiler"]
