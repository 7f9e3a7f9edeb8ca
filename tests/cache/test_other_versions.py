"""A cache of an older or a newer hub is read, or renamed with a note; a full disk costs only what could not be saved."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hub.cache import artifacts
from hub.cache.artifacts import PARTIAL, SEAL
from hub.cache.database import DATABASE, SCHEMA_VERSION
from hub.cache.imports import IMPORTS, read_imports
from hub.cache.measurements import Choice, Measurements
from hub.cache.seals import sealed
from hub.cache.store import Store
from hub.cache.upkeep import OTHERS_S, clear, prune
from hub.plan import FORMAT, Plan, PlannedCluster

PLAN = Plan(graph="g", clusters=(PlannedCluster(name="c0", backend="b", nodes=("n",)),), threads=2)
FACTS: Mapping[str, Any] = json.loads(PLAN.to_json())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a cache folder."""
    return Store(tmp_path / "cache")


def private(path: Path, text: str) -> Path:
    """Write a file as the hub does, readable by its owner only."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.write_text(text)
    path.chmod(0o600)
    return path


def kept(store: Store, facts: Mapping[str, Any]) -> Path:
    """Write a sealed plan as another version would."""
    return private(store.root / "plans" / "key.json", sealed({"key": "key", "made": "2026", "plan": dict(facts)}))


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_measurements_of_another_version_are_put_aside(tmp_path: Path, version: int) -> None:
    """The file is renamed as a whole, a note names both versions, and measuring begins anew."""
    path = private(tmp_path / DATABASE, "")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE measurements (key TEXT PRIMARY KEY, run_s REAL)")
        connection.execute("INSERT INTO measurements VALUES ('key', 1.0)")
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    found, note = Measurements.open(tmp_path)
    assert f"it has schema {version}, this hub has {SCHEMA_VERSION}" in note
    assert (tmp_path / f"{DATABASE}.broken-1").exists()
    found.keep_choice(Choice("key", "about", "b", "choice", 1.0, "2026"))
    assert found.count_all() == 1
    found.close()
    assert Measurements.open(tmp_path)[1] == ""


def test_another_version_keeps_its_measurements_in_the_same_folder(tmp_path: Path) -> None:
    """Two versions do not take turns at setting each other's file aside; one that is not used any more is pruned."""
    other = private(tmp_path / f"measurements-{SCHEMA_VERSION + 1}.sqlite", "of another version")
    log = private(tmp_path / f"{other.name}-wal", "its log")
    found, note = Measurements.open(tmp_path)
    found.keep_choice(Choice("key", "about", "b", "choice", 1.0, "2026"))
    found.close()
    assert (note, other.read_text()) == ("", "of another version")
    old_s = time.time() - OTHERS_S - 1.0
    os.utime(other, (old_s, old_s))
    assert prune(tmp_path, 1e9).aside == (), "its log was changed later"
    os.utime(log, (old_s, old_s))
    assert prune(tmp_path, 1e9).aside == (other, log)
    assert Measurements.open(tmp_path)[0].count_all() == 1
    other.touch()
    clear(tmp_path)
    assert not other.exists()


@pytest.mark.parametrize("page", ["explanation/caches.md", "reference/cli.md"])
def test_the_pages_name_the_file(page: str) -> None:
    """Its name changes with the schema."""
    assert f"`{DATABASE}`" in (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")


def test_a_plan_without_newer_fields_is_read(store: Store) -> None:
    """A plan from before a field was added has that field's default."""
    newer = ("effort", "verify_s", "busy_wait", "search", "contenders", "events")
    kept(store, {name: value for name, value in FACTS.items() if name not in newer})
    assert store.plan("key") == PLAN
    assert store.take_notes() == ()


@pytest.mark.parametrize("change", [{"format": FORMAT + 1}, {"format": FORMAT - 1}, {"invented_later": 1}], ids=str)
def test_a_plan_of_another_format_is_put_aside(store: Store, change: Mapping[str, Any]) -> None:
    """What a hub of another format decided is made anew, with a note."""
    path = kept(store, {**FACTS, **change})
    assert store.plan("key") is None
    (note,) = store.take_notes()
    assert f"{path} is unusable" in note
    assert next(iter(change)) in note
    assert not path.exists()


@pytest.mark.parametrize("missing", ["files", "backend", "key", "about", "made"])
def test_a_seal_of_another_layout_is_put_aside(store: Store, missing: str) -> None:
    """An artefact whose seal lacks what decides is removed with a note; what only tells about it may be missing."""
    folder = store.artifact("b", "key")
    assert store.save(folder, lambda place: private(place / "model", "model") and None).is_done
    facts = {name: value for name, value in artifacts.seal_of(folder).items() if name != missing}
    (folder / SEAL).write_text(sealed(facts))
    is_kept = missing in ("about", "made")
    assert store.has_artifact(folder) == is_kept
    assert len(store.take_notes()) == (0 if is_kept else 1)
    assert folder.exists() == is_kept


@pytest.mark.parametrize(
    "facts",
    [
        {"imports": {"mark": {"plugin": "b"}}},
        {"imports": {"mark": {"plugin": "b", "fault": "", "made": "2026", "invented_later": 1}}},
        {"imports": ["mark"]},
        {"plugins": {}},
    ],
    ids=["field missing", "field of later", "other form", "other name"],
)
def test_imports_of_another_layout_are_put_aside(tmp_path: Path, facts: Mapping[str, Any]) -> None:
    """Plugins are then tried again, and a note says why."""
    path = private(tmp_path / IMPORTS, sealed(facts))
    kept = read_imports(tmp_path)
    assert (dict(kept.found), kept.is_removable) == ({}, True)
    assert kept.problem == f"{path} is unusable: it holds something else"


# --- A full disk ------------------------------------------------------------------------------------------------------


def no_space(*_: object, **__: object) -> None:
    """Raise what every write to a full disk raises."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("name", ["_seal", "_land", "_private_folder"])
def test_a_full_disk_costs_the_artefact_alone(store: Store, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised, the reason is reported, nothing half-written stays, and later there is space again."""
    folder = store.artifact("b", "key")
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, name, no_space)
        saved = store.save(folder, lambda place: private(place / "model", "model") and None)
    assert not saved.is_done
    assert "No space left" in saved.problem
    assert not [path for path in store.root.rglob("*") if path.name.startswith(PARTIAL)]
    assert not store.has_artifact(folder)
    assert store.save(folder, lambda place: private(place / "model", "model") and None).is_done


def test_a_full_disk_costs_a_measurement_alone(tmp_path: Path) -> None:
    """A row that finds no space is lost with a note; earlier rows stay, and later ones are kept."""
    found, _ = Measurements.open(tmp_path)
    found.keep_choice(Choice("first", "about", "b", "choice", 1.0, "2026"))
    (pages,) = found._connection.execute("PRAGMA page_count").fetchone()
    found._connection.execute(f"PRAGMA max_page_count = {pages}")
    found.keep_choice(Choice("second", "about " * 100_000, "b", "choice", 1.0, "2026"))
    assert any("full" in note for note in found.notes)
    assert list(found.find_choices(["first", "second"])) == ["first"]
    found._connection.execute("PRAGMA max_page_count = 100000")
    found.keep_choice(Choice("third", "about", "b", "choice", 1.0, "2026"))
    assert list(found.find_choices(["first", "third"])) == ["first", "third"]


FULL = """
import resource, torch
x, model = torch.randn(3, 4), torch.nn.Linear(4, 4)
compiled = torch.compile(model, backend="hub", options={"tune": "off", "backends": ["onnxruntime"]})
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
with torch.no_grad():
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
print("right", flush=True)
"""


def test_a_model_runs_where_nothing_can_be_written(tmp_path: Path) -> None:
    """With no byte left for any file, results are eager's, and nothing is raised."""
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        env={**os.environ, "HUB_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr
