"""`hub cache`: what it contains, what is corrupt, and how to remove it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hub.cache import artifacts, database
from hub.cache.artifacts import PARTIAL, SEAL
from hub.cache.database import DATABASE
from hub.cache.imports import IMPORTS, LEFTOVERS, Imported, read_imports, write_imports
from hub.cache.measurements import Failure, Measurement, Measurements, Subject
from hub.cache.store import Store
from hub.cache.tuning import tuning_folder
from hub.cli.app import app
from hub.plan import Event, Plan, PlannedCluster
from hub.plugin.cost import Cost

KEY = "0123456789abcdef" * 4
SUBJECT = Subject("structure", "openvino", "versions", "machine", 2, False, "fast", None, "modes")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the active cache folder, which does not exist yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def filled(root: Path) -> Path:
    """Return a cache with an executable, last used two hours ago, a plan, a measurement and two failures."""
    store = Store(root)
    folder = store.artifact("onnxruntime", KEY)
    about = {"operators": [["aten.linear.default", 2], ["aten.gelu.default", 1]], "inputs": ["float32[8, 128]"]}
    assert store.save(folder, lambda place: place.joinpath("model").write_bytes(b"x" * 2_000_000) and None, about).is_done
    os.utime(folder / SEAL, (time.time() - 7200,) * 2)
    clusters = (PlannedCluster(name="c0", backend="onnxruntime", nodes=("n",)),)
    store.keep_plan("plan-key", Plan(graph="g", clusters=clusters, inputs=("float32[8, 128]",)))
    kept, _ = Measurements.open(root)
    kept.keep(Measurement(SUBJECT, Cost(1.0, 0.0, 0, "measured"), 1.0, {}, "2026-11-01"))
    kept.keep_failure(Failure(SUBJECT, "compile", "killed by SIGSEGV\nin frame 7", None, "2026-11-01T12:00:00+00:00"))
    kept.keep_failure(Failure(replace(SUBJECT, backend="inductor"), "verify", "wrong", None, "2026-11-02T12:00:00+00:00"))
    kept.close()
    artifacts._in_use.clear()
    return root


def run(*arguments: str, status: int = 0, typed: str | None = None) -> str:
    found = CliRunner().invoke(app, ["cache", *arguments], input=typed)
    assert found.exit_code == status, found.output
    return found.stdout


def facts(*arguments: str, status: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", status=status))


def model(root: Path) -> Path:
    return root / "artifacts" / "onnxruntime" / KEY / "model"


def test_what_is_kept_is_listed(filled: Path) -> None:
    """Each has one line: owner, key, size, age, last use, and kind."""
    lines = run("ls").splitlines()
    assert lines[0] == f"{filled}: 1 artifact, 1 plan, 2 MB of at most 10 GB"
    assert lines[2].split() == ["kind", "backend", "key", "size", "made", "used", "what"]
    assert lines[3].split()[:5] == ["artifact", "onnxruntime", "0123456789ab", "2", "MB"]
    assert lines[3].endswith("  2 h  aten.linear.default x2, aten.gelu.default x1 on float32[8, 128]")
    assert lines[4].split()[:3] == ["plan", "-", "plan-key"]
    assert lines[4].endswith("onnxruntime for float32[8, 128]")
    assert max(map(len, lines)) < 160


def test_remembered_failures_are_listed_latest_first(filled: Path) -> None:
    """The listing says how to forget them."""
    lines = run("ls").splitlines()
    start = next(number for number, line in enumerate(lines) if "hub cache forget" in line)
    assert [line.split() for line in lines[start + 2 :]] == [
        ["inductor", "verify", "2026-11-02", "wrong"],
        ["openvino", "compile", "2026-11-01", "killed", "by", "SIGSEGV"],
    ]


def test_the_list_is_for_programs_too(filled: Path) -> None:
    """Whole keys, bytes, and times as ISO 8601."""
    found = facts("ls")
    assert (found["folder"], found["limit_bytes"]) == (str(filled), 1e10)
    artifact, plan = found["kept"]
    assert (artifact["kind"], artifact["backend"], artifact["key"]) == ("artifact", "onnxruntime", KEY)
    assert artifact["nbytes"] > 2_000_000
    assert artifact["used"].endswith("+00:00")
    assert artifact["about"]["operators"] == [["aten.linear.default", 2], ["aten.gelu.default", 1]]
    assert (plan["kind"], plan["about"]["backends"]) == ("plan", ["onnxruntime"])
    assert [one["subject"]["backend"] for one in found["failures"]] == ["inductor", "openvino"]


@pytest.mark.parametrize("command", ["ls", "verify", "prune", "forget"])
def test_an_empty_cache_is_no_error_and_is_not_made(root: Path, command: str) -> None:
    """The empty listing says only that."""
    assert run(command)
    facts(command)
    assert not root.exists()


def test_a_sound_cache_verifies(filled: Path) -> None:
    """Exit status 0, and last uses stay as they were."""
    assert run("verify") == f"{filled}: no corrupt entries\n"
    assert facts("verify") == []
    assert facts("ls")["kept"][0]["key"] == KEY


def test_what_is_broken_is_named_and_stays(filled: Path) -> None:
    """Exit status 1, for scripts."""
    model(filled).write_bytes(b"y")
    text = run("verify", status=1)
    assert f"{model(filled)} is not as it was sealed\n" in text
    assert "1 corrupt entry" in text
    assert facts("verify", status=1)[0]["is_removed"] is False
    assert model(filled).exists()


def test_what_is_broken_is_removed_on_request(filled: Path) -> None:
    """It checks executables, plans and rows; sound entries stay."""
    model(filled).write_bytes(b"y")
    connection = sqlite3.connect(filled / DATABASE)
    with connection:
        connection.execute("UPDATE measurements SET run_s = 0")
    connection.close()
    text = run("verify", "--repair")
    assert f"{model(filled)} is not as it was sealed; removed" in text
    assert f"{filled / DATABASE}: 1 row of measurements: it is not as it was written; removed" in text
    assert not model(filled).exists()
    assert run("verify") == f"{filled}: no corrupt entries\n"
    assert len(facts("ls")["kept"]) == 1
    assert len(facts("ls")["failures"]) == 2


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 77
for command in ls verify; do
    "$2" -c 'import sys; sys.argv[0] = "hub"; from hub.cli import main; main()' cache $command --cache-dir "$1" || exit $?
done
"""


@pytest.mark.parametrize("has_log", [False, True])
def test_a_sound_cache_on_a_read_only_disk_is_read(filled: Path, has_log: bool) -> None:
    """It is no corrupt entry that a database cannot be written, with or without the log of a writer."""
    if shutil.which("unshare") is None:
        pytest.skip("a read-only disk is made by unshare")
    writer = Measurements.open(filled)[0] if has_log else None
    if writer is not None:
        writer.keep_profile("machine", 1, "{}")
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, "sh", str(filled), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if writer is not None:
        writer.close()
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this user may not mount anything")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{DATABASE}: {3 + has_log} rows of at most" in done.stdout
    assert f"{filled}: no corrupt entries\n" in done.stdout


def test_a_database_that_cannot_be_written_now_is_read(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk or a lock that another process holds is no fault of the file; a row that is damaged is one."""
    monkeypatch.setattr(database, "FileLock", raising_lock)
    assert run("verify") == f"{filled}: no corrupt entries\n"
    connection = sqlite3.connect(filled / DATABASE)
    with connection:
        connection.execute("UPDATE measurements SET run_s = 0")
    connection.close()
    assert "1 row of measurements: it is not as it was written\n" in run("verify", status=1)
    (filled / DATABASE).write_bytes(b"no database" * 1000)
    assert "cannot be read: file is not a database\n" in run("verify", status=1)
    assert (filled / DATABASE).exists()


def raising_lock(*_: Any, **__: Any) -> Any:
    raise OSError(28, "No space left on device")


def test_a_database_that_is_none_is_named(filled: Path) -> None:
    """Opening it has renamed it."""
    (filled / DATABASE).write_bytes(b"no database" * 1000)
    assert f"set aside as {DATABASE}.broken-1" in run("verify")


def test_a_folder_that_others_may_write_is_broken(filled: Path) -> None:
    """Every other command refuses it, and says how to fix it."""
    filled.chmod(0o777)
    assert f"others may write to {filled}; chmod go-w {filled}" in run("verify", status=1)
    for command in ("ls", "prune", "clear", "forget"):
        found = CliRunner().invoke(app, ["cache", command])
        assert found.exit_code == 1
        assert f"error: the cache folder is not used: others may write to {filled}; chmod go-w {filled}\n" in found.stderr
    assert model(filled).exists()


def test_measurements_that_others_may_write_are_left_alone(filled: Path) -> None:
    """One line says so, not one for each time that they are opened; what cannot be cleared is no success."""
    (filled / DATABASE).chmod(0o666)
    found = CliRunner().invoke(app, ["cache", "ls"])
    assert found.exit_code == 0
    assert found.stderr.count("others may write to") == 1
    assert found.stderr.startswith("warning: ")
    for command in ("clear", "forget", "prune"):
        failed = CliRunner().invoke(app, ["cache", command, *(["--yes"] if command == "clear" else [])])
        assert failed.exit_code == 1
        assert "the measurements are not used: others may write to" in failed.stderr


def test_clearing_asks_and_says_how_not_to(filled: Path) -> None:
    """Without an answer, nothing is removed."""
    found = CliRunner().invoke(app, ["cache", "clear"], input="")
    assert (found.exit_code, "hint: `--yes` does not ask" in found.stderr) == (2, True)
    assert model(filled).exists()


def test_pruning_brings_the_cache_down_to_a_size(filled: Path) -> None:
    """The size is the configured one, or one that is given."""
    assert "removed 0 entries, 0 bytes" in run("prune")
    assert model(filled).exists()
    assert "removed 1 entry, 2 MB, and 0 leftovers of killed processes" in run("prune", "--cache-gb", "0.001")
    assert not model(filled).exists()
    assert [item["kind"] for item in facts("ls")["kept"]] == ["plan"]


def test_pruning_removes_what_killed_processes_left(filled: Path) -> None:
    """They are removed once they are old."""
    partial = filled / "artifacts" / "onnxruntime" / f"{PARTIAL}abc"
    partial.mkdir()
    assert facts("prune")["leftovers"] == []
    os.utime(partial, (1000, 1000))
    assert facts("prune")["leftovers"] == [str(partial)]
    assert not partial.exists()


def test_the_file_of_measurements_is_listed(filled: Path) -> None:
    """The line has the number and the limit of rows, its size, and the corrupt files kept from it."""
    (line,) = (line for line in run("ls").splitlines() if line.startswith(DATABASE))
    assert re.fullmatch(rf"{DATABASE}: 3 rows of at most 60,500, \S+ kB", line)
    (filled / f"{DATABASE}.broken-1").write_bytes(b"damaged")
    (line,) = (line for line in run("ls").splitlines() if line.startswith(DATABASE))
    assert line.endswith("; 1 file set aside as damaged")
    found = facts("ls")["measurements"]
    assert (found["rows"], found["limit_rows"], found["aside"]) == (3, 60_500, [str(filled / f"{DATABASE}.broken-1")])
    assert found["nbytes"] > 0


def test_pruning_bounds_the_file_of_measurements(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest rows and the corrupt files are removed."""
    (filled / f"{DATABASE}.broken-1").write_bytes(b"damaged")
    monkeypatch.setattr("hub.cache.measurements.MOST", {"measurements": 5, "failures": 1, "choices": 5, "profiles": 5})
    assert f"{DATABASE}: removed 1 old row and 1 file no longer in use" in run("prune")
    assert [one["subject"]["backend"] for one in facts("ls")["failures"]] == ["inductor"]
    found = facts("prune")
    assert (found["rows"], found["aside"]) == (0, [])
    assert DATABASE not in run("prune")


def test_clearing_asks_first(filled: Path) -> None:
    """After "no", or no answer, nothing happens."""
    for typed, status in (("n\n", 1), ("", 2)):
        run("clear", status=status, typed=typed)
        assert model(filled).exists()
    assert "removed 2" in run("clear", typed="y\n")
    assert not model(filled).exists()


def test_a_closed_standard_input_is_no_answer(filled: Path) -> None:
    """As with an empty one, `--yes` is what helps; a service may run without one."""
    line = f"{shlex.quote(sys.executable)} -P -m hub cache clear <&-"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, model(filled).exists()) == (2, True)
    assert done.stderr == "error: there is no answer on standard input\nhint: `--yes` does not ask\n"


def test_the_hint_at_a_wrong_flag_has_the_flags_own_name() -> None:
    """It is no name of a setting with its table, which no flag has."""
    found = CliRunner().invoke(app, ["cache", "prune", "--cache-gb", "-1"])
    assert found.stderr.endswith("hint: for example --cache-gb 10\n")


def test_clearing_leaves_nothing(filled: Path) -> None:
    """No executable, plan, measurement or failure remains; a foreign file stays."""
    (filled / "mine.txt").write_text("mine")
    found = facts("clear", "--yes")
    assert found["nbytes"] > 2_000_000
    assert found["rows"] == 3
    listed = facts("ls")
    assert (listed["kept"], listed["failures"]) == ([], [])
    assert Measurements.open(filled)[0].count() == 0
    assert (filled / "mine.txt").exists()


@pytest.fixture
def tuned(filled: Path) -> Path:
    """Return a cache with two tuned kernels, and a corrupt one."""
    for name in ("kernel0", "kernel1", "kernel1.damaged0"):
        folder = tuning_folder(filled, "tvm") / name
        folder.mkdir(parents=True)
        (folder / "records").write_bytes(b"x" * 1000)
    return filled


def test_what_tuning_found_is_listed(tuned: Path) -> None:
    """The line has the number of kernels per backend, the corrupt ones, and the limit."""
    assert "tuning: 2 tuned kernels (tvm), 1 set aside as damaged, 3 kB of at most 1 GB" in run("ls")
    facts = json.loads(run("ls", "--json"))["tuning"]
    assert (facts["kernels"], facts["nbytes"], len(facts["aside"])) == ({"tvm": 2}, 3000, 1)


def test_pruning_removes_what_was_set_aside_of_tuning(tuned: Path) -> None:
    """It says so; readable kernels stay while they fit."""
    assert "tuning: removed 0 tuned kernels (tvm), 1 set aside as damaged, 1 kB" in run("prune")
    assert [path.name for path in sorted(tuning_folder(tuned, "tvm").iterdir())] == ["kernel0", "kernel1"]


def test_clearing_leaves_what_tuning_found_unless_asked(tuned: Path) -> None:
    """Tuning may have taken hours: what remains is reported, and how to remove it; the question names what is removed."""
    said = run("clear", "--yes")
    assert "left 2 tuned kernels (tvm), 1 set aside as damaged, 3 kB, for which tuning may have taken hours" in said
    assert len(list(tuning_folder(tuned, "tvm").iterdir())) == 3
    asked = CliRunner().invoke(app, ["cache", "clear", "--tuning"], input="n\n")
    assert (asked.exit_code, len(list(tuning_folder(tuned, "tvm").iterdir()))) == (1, 3)
    assert "and 2 tuned kernels (tvm)" in asked.output
    assert "removed 2 tuned kernels (tvm), 1 set aside as damaged, 3 kB" in run("clear", "--yes", "--tuning")
    assert list(tuning_folder(tuned, "tvm").iterdir()) == []


def test_failures_are_forgotten(filled: Path) -> None:
    """The failures are those of one backend, or all; measurements stay."""
    assert run("forget", "openvino") == "forgot 1 failure of openvino\n"
    assert [one["subject"]["backend"] for one in facts("ls")["failures"]] == ["inductor"]
    assert facts("forget") == {"forgotten": 1, "plans": 0}
    assert Measurements.open(filled)[0].count() == 1


def test_plans_made_after_a_failure_are_forgotten_with_it(filled: Path) -> None:
    """A replay would keep excluding the backend; plans in which only others failed stay."""
    event = Event(kind="failed", stage="compile", backend="openvino", message="killed by SIGSEGV")
    clusters = (PlannedCluster(name="c0", backend="onnxruntime", nodes=("n",)),)
    Store(filled).keep_plan("after", Plan(graph="g", clusters=clusters, events=(event,)))
    assert run("forget", "inductor") == "forgot 1 failure of inductor\n"
    assert run("forget", "openvino") == "forgot 1 failure of openvino, and 1 plan made after it\n"
    assert [item["key"] for item in facts("ls")["kept"] if item["kind"] == "plan"] == ["plan-key"]


def test_a_misspelt_backend_is_named(filled: Path) -> None:
    """The message has the nearest name; one that is no longer installed may be forgotten."""
    kept, _ = Measurements.open(filled)
    kept.keep_failure(Failure(replace(SUBJECT, backend="gone"), "compile", "x", None, "2026-11-01"))
    kept.close()
    found = CliRunner().invoke(app, ["cache", "forget", "openvin"])
    assert found.exit_code == 2
    assert found.stderr.startswith("error: no backend is named 'openvin'; did you mean 'openvino'?")
    assert run("forget", "gone") == "forgot 1 failure of gone\n"


@pytest.fixture
def imported(filled: Path) -> Path:
    """Return a cache that knows three plugins, one of which crashed while it was imported."""
    faults = {"good": "", "fine": "", "fatal": "importing it ended its process: killed by SIGSEGV"}
    write_imports(filled, {f"{name} 1.0": Imported(name, text, "2026-11-03T12:00:00") for name, text in faults.items()})
    return filled


def test_imports_are_listed(imported: Path) -> None:
    """Those that did harm are listed among the failures."""
    lines = run("ls").splitlines()
    assert f"{IMPORTS}: 2 plugins imported without harm" in lines
    assert re.fullmatch(r"fatal +import +2026-11-03 +importing it ended its process: killed by SIGSEGV", lines[-1])
    assert [(one["plugin"], one["fault"][:9]) for one in facts("ls")["imports"]] == [
        ("fatal", "importing"),
        ("fine", ""),
        ("good", ""),
    ]


def test_imports_are_forgotten(imported: Path) -> None:
    """The imports are those of one plugin, or all; harmless ones stay known."""
    assert run("forget", "openvino") == "forgot 1 failure of openvino\n"
    assert len(read_imports(imported).found) == 3
    assert run("forget", "fatal") == "forgot 1 failure of fatal\n"
    assert {one.plugin for one in read_imports(imported).found.values()} == {"good", "fine"}
    assert facts("forget") == {"forgotten": 1, "plans": 0}


def test_all_imports_are_forgotten_at_once(imported: Path) -> None:
    """With the failures of backends."""
    assert facts("forget") == {"forgotten": 3, "plans": 0}
    assert [one["fault"] for one in facts("ls")["imports"]] == ["", ""]


def test_imports_are_verified(imported: Path) -> None:
    """A change of one letter is named, and removed on request."""
    path = imported / IMPORTS
    path.write_text(path.read_text().replace("SIGSEGV", "SIGSEGW"))
    assert f"{path} is damaged: `hub cache verify --repair` removes it" in run("ls")
    assert f"{path} is damaged\n" in run("verify", status=1)
    assert f"{path} is damaged; removed" in run("verify", "--repair")
    assert not path.exists()
    assert run("verify") == f"{imported}: no corrupt entries\n"


def test_imports_are_cleared(imported: Path) -> None:
    """What a killed process left half-written is removed too."""
    (imported / f"{LEFTOVERS}abc").touch()
    run("clear", "--yes")
    assert facts("ls")["imports"] == []
    assert not list(imported.glob(f"{IMPORTS}*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("prune", "--cache-gb", "much"),
            "option 'cache.gb' (from the command line) must be a number of gigabytes above 0",
        ),
        (("prune", "--cache-gb", "-1"), "option 'cache.gb' (from the command line) must be a number of gigabytes above 0"),
        (("lst",), "No such command 'lst'"),
    ],
)
def test_a_mistake_is_one_message(root: Path, arguments: tuple[str, ...], message: str) -> None:
    """This holds for every command."""
    found = CliRunner().invoke(app, ["cache", *arguments])
    assert found.exit_code == 2
    assert message in found.stderr


def test_another_folder_can_be_named(filled: Path, tmp_path: Path) -> None:
    """It replaces the active one."""
    assert facts("ls", "--cache-dir", str(tmp_path / "other"))["kept"] == []
    assert len(facts("ls", "--cache-dir", str(filled))["kept"]) == 2


def test_a_cache_that_cannot_be_changed_is_an_error(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that would change it say so instead of reporting that they removed nothing."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    for command in (("prune",), ("clear", "--yes"), ("forget",)):
        found = CliRunner().invoke(app, ["cache", *command])
        assert found.exit_code == 1
        assert f"error: {filled} cannot be changed: this user may not write to it\nhint: " in found.stderr
    assert model(filled).exists()


def test_entries_that_stay_are_an_error(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`clear` checks that what it removed is gone."""
    monkeypatch.setattr("hub.cli.cache.clear", lambda _: 0)
    found = CliRunner().invoke(app, ["cache", "clear", "--yes"])
    assert found.exit_code == 1
    assert "could not be removed" in found.stderr


def test_a_cache_below_a_file_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can never hold anything."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HUB_CACHE_DIR", str(tmp_path / "file" / "cache"))
    for command in (("ls",), ("verify",), ("clear", "--yes")):
        found = CliRunner().invoke(app, ["cache", *command])
        assert found.exit_code == 1
        assert f"{tmp_path / 'file'} is not a folder" in found.stderr
