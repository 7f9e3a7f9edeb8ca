"""The store of measurements: shared by processes, keyed by everything that matters, never a reason to fail."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hub.cache import database
from hub.cache import measurements as measurements_module
from hub.cache.database import DATABASE, choices_state
from hub.cache.measurements import (
    MAX_ROWS,
    Choice,
    Failure,
    Measurement,
    Measurements,
    Subject,
    machine_digest,
    versions_of,
)
from hub.discovery.registry import registry
from hub.plugin.cost import Cost

SUBJECT = Subject("structure", "toy", "versions", "machine", 2, False, "fast", None, "modes")


def measurement(run_s: float = 1.0, subject: Subject = SUBJECT, spread_s: float = 0.0) -> Measurement:
    cost = Cost(run_s, spread_s, 64, "measured", "median of 40 calls, 2 threads")
    return Measurement(subject, cost, 0.5, {"flops": 2.0, "bytes": 3.5}, "2026-11-01T12:00:00+00:00")


def failure(subject: Subject = SUBJECT, reason: str = "killed by SIGSEGV") -> Failure:
    return Failure(subject, "compile", reason, None, "2026-11-01T12:00:00+00:00")


def opened(root: Path) -> Measurements:
    kept, note = Measurements.open(root)
    assert note == ""
    return kept


def filled(root: Path, rows: int = 40) -> Path:
    """Write a closed store to disk, with rows of as many subjects; return its file."""
    kept = opened(root)
    for number in range(rows):
        kept.keep(measurement(subject=replace(SUBJECT, structure=f"s{number}")))
    kept.keep_profile("machine", 2, "{}")
    kept.close()
    return root / DATABASE


def test_a_measurement_comes_back_equal(tmp_path: Path) -> None:
    """What was kept is found by another opening of the same folder."""
    opened(tmp_path).keep(measurement())
    assert opened(tmp_path).find(SUBJECT) == measurement()


@pytest.mark.parametrize(
    "other",
    [
        {"structure": "x"},
        {"backend": "x"},
        {"versions": "x"},
        {"machine": "x"},
        {"threads": 1},
        {"busy_wait": True},
        {"effort": "full"},
        {"accuracy": 1e-3},
        {"modes": "x"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_every_part_of_a_subject_is_in_its_key(tmp_path: Path, other: dict[str, str]) -> None:
    """A row from another machine, version, thread count and so on is never found."""
    kept = opened(tmp_path)
    kept.keep(measurement())
    assert kept.find(replace(SUBJECT, **other)) is None


def test_only_measured_costs_are_kept() -> None:
    """An estimate cannot pass for a measurement."""
    with pytest.raises(ValueError, match="must be measured, got one of source estimated"):
        replace(measurement(), cost=Cost(1.0))


def test_repeated_measurements_give_their_median(tmp_path: Path) -> None:
    """One noisy phase does not stick; the spread covers what was seen."""
    kept = opened(tmp_path)
    for run_s in (1.0, 9.0, 1.2):
        kept.keep(measurement(run_s, spread_s=0.1))
    found = kept.find(SUBJECT)
    assert found is not None
    assert (found.cost.run_s, found.cost.spread_s) == (1.2, 4.0)
    assert found.cost.detail.endswith("median of 3 measurements")


def test_the_latest_rows_of_a_subject_are_kept(tmp_path: Path) -> None:
    """Older ones go, so that a machine that changed is seen as it is."""
    kept = opened(tmp_path)
    for run_s in range(1, 10):
        kept.keep(measurement(float(run_s)))
    assert kept.count() == MAX_ROWS
    found = kept.find(SUBJECT)
    assert found is not None
    assert found.cost.run_s == 7.0


def test_many_subjects_are_found_at_once_in_their_order(tmp_path: Path) -> None:
    """Those that were never measured are left out."""
    kept = opened(tmp_path)
    subjects = [replace(SUBJECT, structure=str(number)) for number in range(1200)]
    for subject in subjects[::100]:
        kept.keep(measurement(subject=subject))
    assert list(kept.find_many(subjects[::-1])) == subjects[::100][::-1]
    assert kept.find_many(()) == {}


def test_samples_are_one_a_subject_newest_first(tmp_path: Path) -> None:
    """The learned model reads what was measured of one backend on one machine."""
    kept = opened(tmp_path)
    subjects = [replace(SUBJECT, structure=name) for name in "abc"]
    for subject in (*subjects, subjects[0], replace(SUBJECT, backend="other"), replace(SUBJECT, threads=1)):
        kept.keep(measurement(subject=subject))
    kept.keep(measurement(subject=replace(SUBJECT, structure="d", versions="old")))
    assert [found.subject.structure for found in kept.samples("toy", "machine", 2)] == ["d", "a", "c", "b"]
    assert [found.subject.structure for found in kept.samples("toy", "machine", 2, "versions", most=2)] == ["a", "c"]
    assert kept.samples("toy", "machine", 2)[1].features == {"flops": 2.0, "bytes": 3.5}


def test_a_profile_is_kept_for_a_machine_and_a_thread_count(tmp_path: Path) -> None:
    """The latest one counts."""
    kept = opened(tmp_path)
    kept.keep_profile("machine", 2, "old")
    kept.keep_profile("machine", 2, "new")
    assert (kept.profile("machine", 2), kept.profile("machine", 1), kept.profile("x", 2)) == ("new", None, None)


WRITER = """
import sys
from dataclasses import replace
from pathlib import Path
from hub.cache.measurements import Measurements
sys.path.insert(0, sys.argv[2])
from test_measurements import SUBJECT, failure, measurement
number = sys.argv[3]
print("ready", flush=True)
sys.stdin.readline()
kept, note = Measurements.open(Path(sys.argv[1]))
for row in range(int(sys.argv[4])):
    subject = replace(SUBJECT, structure=f"{number} {row}")
    kept.keep(measurement(subject=subject))
    kept.keep_failure(failure(subject))
print(note, *kept.notes)
"""


def together(root: Path, rows: int, processes: int = 16) -> list[str]:
    """Run writers that open the store at the same moment; return the complaints of each."""
    command = [sys.executable, "-W", "error", "-c", WRITER, str(root), str(Path(__file__).parent)]
    writers = [
        subprocess.Popen([*command, str(number), str(rows)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    outputs = [writer.communicate()[0].strip() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * processes
    return outputs


def test_sixteen_processes_write_at_once_and_no_row_is_lost(tmp_path: Path) -> None:
    """They also open it for the first time at once."""
    assert together(tmp_path / "cache", rows=200) == [""] * 16
    kept = opened(tmp_path / "cache")
    assert (kept.count(), len(kept.failures())) == (3200, 3200)
    assert kept.find_broken() == ()


@pytest.mark.slow
def test_sixteen_processes_that_find_a_damaged_file_set_it_aside_once(tmp_path: Path) -> None:
    """None takes the new file of another for the damaged one."""
    filled(tmp_path).write_bytes(b"no database" * 1000)
    complaints = together(tmp_path, rows=5)
    assert sum(f"set aside as {DATABASE}.broken-1" in text for text in complaints) == 1
    assert complaints.count("") == 15
    assert opened(tmp_path).count() == 80
    assert not (tmp_path / f"{DATABASE}.broken-2").exists()


def spoil_with(statement: str) -> Callable[[Path], None]:
    def spoil(file: Path) -> None:
        connection = sqlite3.connect(file)
        with connection:
            connection.execute(statement)
        connection.close()

    return spoil


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "another schema": (spoil_with("PRAGMA user_version = 7"), "it has schema 7, this hub has 4"),
    "no version": (spoil_with("PRAGMA user_version = 0"), "it has schema 0, this hub has 4"),
    "other tables": (spoil_with("ALTER TABLE profiles RENAME TO others"), "its tables are not the hub's"),
    "no SQLite": (lambda file: file.write_text("# measurements\n" * 300), "file is not a database"),
    "half-written": (lambda file: os.truncate(file, 5000), "malformed"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_file_that_cannot_be_used_is_set_aside(tmp_path: Path, name: str) -> None:
    """A note says where it went and why; a new one starts; the old one's -wal and -shm go with it."""
    spoil, reason = DAMAGE[name]
    spoil(filled(tmp_path))
    (tmp_path / f"{DATABASE}-wal").write_bytes(b"")
    kept, note = Measurements.open(tmp_path)
    assert f"set aside as {DATABASE}.broken-1" in note
    assert reason in note
    kept.keep(measurement())
    kept.close()
    assert opened(tmp_path).count() == 1
    assert (tmp_path / f"{DATABASE}.broken-1").exists()


def test_files_set_aside_do_not_pile_up(tmp_path: Path) -> None:
    """From the fourth on, the last one is replaced."""
    for _ in range(6):
        (tmp_path / DATABASE).write_text("no database at all" * 100)
        (tmp_path / DATABASE).chmod(0o600)
        Measurements.open(tmp_path)[0].close()
    assert len(list(tmp_path.glob("*.broken-*"))) == 3


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    """That is what a process leaves that died while making it."""
    (tmp_path / DATABASE).touch(0o600)
    assert opened(tmp_path).count() == 0


def test_damage_that_shows_late_costs_the_rows_only(tmp_path: Path) -> None:
    """A query on damaged pages finds nothing; the next writes go to a new file."""
    file = filled(tmp_path, rows=400)
    kept = opened(tmp_path)
    with file.open("r+b") as pages:
        pages.seek(4096 * 6)
        pages.write(os.urandom(file.stat().st_size - 4096 * 6))
    for number in range(400):
        kept.find(replace(SUBJECT, structure=f"s{number}"))
    assert any(f"set aside as {DATABASE}.broken-1" in note for note in kept.notes)
    kept.keep(measurement())
    assert kept.find(SUBJECT) == measurement()
    kept.close()
    assert opened(tmp_path).count() == 1


@pytest.mark.parametrize("seed", range(60))
def test_no_damage_raises(tmp_path: Path, seed: int) -> None:
    """Whatever bytes of the file are wrong or missing, every question has an answer."""
    file = filled(tmp_path)
    chance = random.Random(seed)
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 20, 2000))):
        content[chance.randrange(len(content))] = chance.randrange(256)
    file.write_bytes(content[: chance.choice((len(content), chance.randrange(len(content))))])
    kept, _ = Measurements.open(tmp_path)
    kept.find_many(replace(SUBJECT, structure=f"s{number}") for number in range(40))
    kept.samples("toy", "machine", 2)
    kept.profile("machine", 2)
    kept.find_failures([SUBJECT])
    kept.failures()
    kept.keep(measurement())
    kept.keep_failure(failure())
    kept.find_broken(repair=True)
    kept.forget("toy")
    kept.clear()
    kept.count()
    kept.close()
    Measurements.open(tmp_path)[0].close()


def test_a_row_of_wrong_values_counts_as_absent(tmp_path: Path) -> None:
    """SQLite keeps any type in any column; a note says that the row was left out."""
    spoil_with("UPDATE measurements SET run_s = 'soon' WHERE structure = 's0'")(filled(tmp_path, rows=2))
    kept = opened(tmp_path)
    assert kept.find(replace(SUBJECT, structure="s0")) is None
    assert [found.subject.structure for found in kept.samples("toy", "machine", 2)] == ["s1"]
    assert "a row of toy cannot be read" in kept.notes[0]


@pytest.mark.parametrize(
    "change",
    ["run_s = 2e-9", "backend = 'tot'", "busy_wait = 1", "features = '{}'", "made = CAST(x'ff' AS TEXT)", "digest = 'x'"],
)
def test_a_row_that_is_not_as_it_was_written_counts_as_absent(tmp_path: Path, change: str) -> None:
    """A price that a flipped bit made small would win every time; a note says that it was left out."""
    spoil_with(f"UPDATE measurements SET {change} WHERE structure = 's0'")(filled(tmp_path, rows=2))
    kept = opened(tmp_path)
    assert kept.find(replace(SUBJECT, structure="s0")) is None
    assert kept.find(replace(SUBJECT, structure="s1")) is not None
    assert "cannot be read: it is not as it was written" in kept.notes[0]


def test_a_profile_that_is_not_as_it_was_written_counts_as_absent(tmp_path: Path) -> None:
    """The machine is then measured anew."""
    spoil_with("UPDATE profiles SET profile = '[]'")(filled(tmp_path))
    kept = opened(tmp_path)
    assert kept.profile("machine", 2) is None
    assert "the profile of this machine cannot be read" in kept.notes[0]


def test_broken_rows_are_named_and_dropped_on_request(tmp_path: Path) -> None:
    """The others stay."""
    kept = opened(tmp_path)
    for number in range(3):
        kept.keep(measurement(subject=replace(SUBJECT, structure=f"s{number}")))
    kept.keep_failure(failure())
    kept.close()
    spoil_with("UPDATE measurements SET run_s = 2 WHERE structure < 's2'")(tmp_path / DATABASE)
    spoil_with("UPDATE failures SET reason = ''")(tmp_path / DATABASE)
    kept = opened(tmp_path)
    told = ("2 rows of measurements: it is not as it was written", "1 row of failures: it is not as it was written")
    assert kept.find_broken() == told
    assert kept.find_broken(repair=True) == told
    assert kept.find_broken() == ()
    assert kept.count() == 1


def test_damage_is_found_by_reading_all(tmp_path: Path) -> None:
    """A damaged file is renamed, too."""
    file = filled(tmp_path, rows=400)
    kept = opened(tmp_path)
    with file.open("r+b") as pages:
        pages.seek(4096 * 6)
        pages.write(os.urandom(file.stat().st_size - 4096 * 6))
    assert kept.find_broken(repair=True) != ()
    assert (tmp_path / f"{DATABASE}.broken-1").exists()
    assert kept.find_broken() == ()


# --- Failures ---------------------------------------------------------------------------------------------------------


def test_a_failure_comes_back_equal(tmp_path: Path) -> None:
    """What was kept is found by another opening, for its own subject only; the latest counts."""
    kept = opened(tmp_path)
    other, third = replace(SUBJECT, structure="other"), replace(SUBJECT, accuracy=1e-3, busy_wait=True)
    kept.keep_failure(failure(reason="old"))
    kept.keep_failure(failure(third))
    kept.keep_failure(failure())
    kept.close()
    kept = opened(tmp_path)
    assert kept.find_failures([other, SUBJECT, third]) == {SUBJECT: failure(), third: failure(third)}
    assert kept.failures() == (failure(), failure(third))
    assert kept.find_failures([]) == {}


REASONS = {
    "a surrogate": "a lone \udcff surrogate",
    "nothing": "",
    "a zero": "a \0 in it",
    "a book": "x" * 1_000_000,
    "statements": "\n'; DROP TABLE failures",
}


@pytest.mark.parametrize("name", REASONS)
def test_any_reason_can_be_kept(tmp_path: Path, name: str) -> None:
    """Other people's code writes them."""
    kept = opened(tmp_path)
    kept.keep_failure(failure(reason=REASONS[name]))
    (found,) = kept.failures()
    assert found.reason == REASONS[name].replace("\udcff", "\\udcff")
    assert kept.notes == []


def test_failures_are_forgotten_on_request(tmp_path: Path) -> None:
    """Those of one backend, or all; measurements stay."""
    kept = opened(tmp_path)
    kept.keep(measurement())
    for number in range(3):
        kept.keep_failure(failure(replace(SUBJECT, structure=f"s{number}")))
    kept.keep_failure(failure(replace(SUBJECT, backend="other")))
    assert kept.forget("other") == 1
    assert [found.subject.backend for found in kept.failures()] == ["toy"] * 3
    assert kept.forget("nobody") == 0
    assert kept.forget() == 3
    assert kept.failures() == ()
    assert kept.count() == 1


def test_failures_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go."""
    monkeypatch.setattr(measurements_module, "MOST", {"failures": 3})
    kept = opened(tmp_path)
    for number in range(8):
        kept.keep_failure(failure(replace(SUBJECT, structure=f"s{number}")))
    assert [found.subject.structure for found in kept.failures()] == ["s7", "s6", "s5"]


def test_measurements_of_many_subjects_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, whatever they are about."""
    monkeypatch.setattr(measurements_module, "MOST", {"measurements": 3})
    kept = opened(tmp_path)
    subjects = [replace(SUBJECT, structure=f"s{number}") for number in range(8)]
    for subject in subjects:
        kept.keep(measurement(subject=subject))
    assert list(kept.find_many(subjects)) == subjects[-3:]
    assert kept.count() == 3


def test_choices_and_profiles_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is chosen or measured anew counts as new."""
    monkeypatch.setattr(measurements_module, "MOST", {"choices": 2, "profiles": 2})
    kept = opened(tmp_path)
    for name in ("a", "b", "a", "c"):
        kept.keep_choice(Choice(name, "product", "triton", "{}", 1.0, "2026-11-01"))
        kept.keep_profile(name, 2, "{}")
    assert sorted(kept.find_choices("abc")) == ["a", "c"]
    assert [name for name in "abc" if kept.profile(name, 2)] == ["a", "c"]
    assert kept.count_all() == 4


def test_a_store_that_grew_too_large_is_trimmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier hub may have left it so; the disk has its space back."""
    before = filled(tmp_path, rows=400).stat().st_size
    monkeypatch.setattr(measurements_module, "MOST", {"measurements": 10, "failures": 10, "choices": 10, "profiles": 10})
    kept = opened(tmp_path)
    assert kept.trim() == 390
    assert kept.trim() == 0
    assert kept.find(replace(SUBJECT, structure="s399")) is not None
    kept.close()
    assert (tmp_path / DATABASE).stat().st_size < before / 2
    assert opened(tmp_path).count() == 10


def test_every_table_is_bounded() -> None:
    """One that is added needs a number of rows."""
    assert set(measurements_module.MOST) == set(measurements_module._COLUMNS)


def test_a_failure_that_is_not_as_it_was_written_is_forgotten(tmp_path: Path) -> None:
    """The candidate is then tried again."""
    kept = opened(tmp_path)
    kept.keep_failure(failure())
    kept.close()
    spoil_with("UPDATE failures SET stage = 'run'")(tmp_path / DATABASE)
    kept = opened(tmp_path)
    assert kept.find_failures([SUBJECT]) == {}
    assert kept.failures() == ()
    assert "failures: a row of toy cannot be read" in kept.notes[0]


# --- Choices ----------------------------------------------------------------------------------------------------------


CHOICE = Choice("key", "a product", "toy", '{"BM": 64}', 1e-5, "2026-11-01T00:00:00+00:00")


def test_a_choice_is_found_again(tmp_path: Path) -> None:
    """The latest of its key, in other processes too; others are not there."""
    kept = opened(tmp_path)
    assert kept.find_choices(["key"]) == {}
    kept.keep_choice(replace(CHOICE, run_s=1.0))
    kept.keep_choice(CHOICE)
    kept.close()
    assert opened(tmp_path).find_choices(["key", "another", "key"]) == {"key": CHOICE}


def test_a_choice_that_is_not_as_it_was_written_is_none(tmp_path: Path) -> None:
    """It is made anew, and a note says so."""
    kept = opened(tmp_path)
    kept.keep_choice(CHOICE)
    kept.close()
    spoil_with("UPDATE choices SET choice = '{}'")(tmp_path / DATABASE)
    kept = opened(tmp_path)
    assert kept.find_choices(["key"]) == {}
    assert "choices: a row of toy cannot be read" in kept.notes[0]


def test_the_state_of_choices_changes_with_each(tmp_path: Path) -> None:
    """Only a backend's own ones count, before and after the file is closed; asking makes no file."""
    assert choices_state(tmp_path / "nowhere", "toy") == ""
    assert not (tmp_path / "nowhere").exists()
    kept = opened(tmp_path)
    states = [choices_state(tmp_path, "toy")]
    for choice in (CHOICE, replace(CHOICE, choice="{}"), replace(CHOICE, key="second")):
        kept.keep_choice(choice)
        states.append(choices_state(tmp_path, "toy"))
    assert (states[0], len(set(states))) == ("", 4)
    kept.keep_choice(replace(CHOICE, key="third", backend="other"))
    kept.close()
    assert choices_state(tmp_path, "toy") == states[-1]


def test_clearing_leaves_no_row(tmp_path: Path) -> None:
    """Of any table."""
    kept = opened(tmp_path)
    kept.keep_choice(CHOICE)
    kept.keep(measurement())
    kept.keep_failure(failure())
    kept.keep_profile("machine", 2, "{}")
    assert kept.clear() == 4
    assert kept.find_choices(["key"]) == {}
    assert (kept.count(), kept.failures(), kept.profile("machine", 2)) == (0, (), None)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_files_that_others_may_write_are_not_read(tmp_path: Path, what: str) -> None:
    """They stay where they are; measurements then last as long as the process."""
    file = filled(tmp_path)
    (file if what == "file" else tmp_path).chmod(0o777)
    kept, note = Measurements.open(tmp_path)
    assert "last only as long as this process: others may write to" in note
    assert "chmod go-w" in note
    assert kept.count() == 0
    kept.keep(measurement())
    assert kept.find(SUBJECT) == measurement()
    assert file.exists()


def test_files_of_another_user_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers that another user wrote decide nothing."""
    filled(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    kept, note = Measurements.open(tmp_path)
    assert "belongs to another user" in note
    assert kept.count() == 0


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask, so that a later opening trusts it."""
    before = os.umask(0)
    try:
        kept = opened(tmp_path / "cache")
        kept.keep(measurement())
        modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "cache").glob(f"{DATABASE}*")}
    finally:
        os.umask(before)
    assert set(modes.values()) == {0o600}, modes
    assert opened(tmp_path / "cache").count() == 1


def test_a_folder_that_cannot_be_made_leaves_memory(tmp_path: Path) -> None:
    """On a read-only disk the process still measures each thing once."""
    (tmp_path / "file").write_text("")
    kept, note = Measurements.open(tmp_path / "file" / "cache")
    assert "last only as long as this process" in note
    kept.keep(measurement())
    assert kept.find(SUBJECT) == measurement()


def test_a_lock_held_for_long_loses_the_row_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading goes on meanwhile, and writing goes on afterwards."""
    filled(tmp_path, rows=1)
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    kept = opened(tmp_path)
    other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    kept.keep(measurement())
    assert kept.notes == ["measurements: database is locked"]
    assert kept.find(SUBJECT) is None
    assert kept.count() == 1
    other.execute("COMMIT")
    other.close()
    kept.keep(measurement())
    assert kept.find(SUBJECT) == measurement()


FULL = """
import resource, sys
from dataclasses import replace
from pathlib import Path
from hub.cache.measurements import Measurements
sys.path.insert(0, sys.argv[2])
from test_measurements import SUBJECT, measurement
kept, note = Measurements.open(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
for row in range(2000):
    kept.keep(measurement(subject=replace(SUBJECT, structure=f"{row}")))
print(note, kept.notes)
"""


def test_a_full_disk_loses_the_row_only(tmp_path: Path) -> None:
    """What was written before stays readable."""
    command = [sys.executable, "-c", FULL, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "measurements: " in done.stdout
    assert "set aside" not in done.stdout
    assert 0 < opened(tmp_path).count() < 2000


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite calls it an I/O error."""
    error = sqlite3.OperationalError("disk I/O error")
    assert database.why(error, tmp_path) == "disk I/O error"
    monkeypatch.setattr(database.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    assert database.why(error, tmp_path) == f"no space left in {tmp_path}"


def test_a_closed_store_finds_nothing(tmp_path: Path) -> None:
    """Closing twice is no error, nor is asking afterwards."""
    kept = opened(tmp_path)
    kept.keep(measurement())
    kept.close()
    kept.close()
    kept.keep(measurement())
    assert kept.find(SUBJECT) is None
    assert kept.samples("toy", "machine", 2) == ()
    kept.keep_failure(failure())
    assert (kept.failures(), kept.find_failures([SUBJECT]), kept.forget(), kept.clear()) == ((), {}, 0, 0)


def test_two_openings_in_one_process_see_each_other(tmp_path: Path) -> None:
    """Opening again does not disturb the first one's locks."""
    first, second = opened(tmp_path), opened(tmp_path)
    first.keep(measurement())
    assert second.find(SUBJECT) == measurement()
    second.close()
    first.keep(measurement())
    assert first.count() == 2


def test_versions_tell_backends_and_libraries_apart() -> None:
    """Each backend has its digest, and so has eager."""
    entries = registry().entries
    digests = {versions_of(entry) for entry in (*entries.values(), None)}
    assert len(digests) == len(entries) + 1
    entry = entries["onnxruntime"]
    assert versions_of(replace(entry, package_version="0.0")) != versions_of(entry)


def test_the_machine_has_one_fingerprint() -> None:
    """Another set of cores is another machine."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" if len(os.sched_getaffinity(0)) > 1 else ""
    )
    show = "from hub.cache.measurements import machine_digest; print(machine_digest())"
    found = [
        subprocess.run([sys.executable, "-c", start + show], capture_output=True, text=True, check=True).stdout.strip()
        for start in ("", code)
    ]
    assert found[0] == machine_digest()
    assert (found[1] == found[0]) == (not code)
