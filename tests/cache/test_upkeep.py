"""Upkeep: the cache stays within its size, and nothing in use is lost by that."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from hub.cache import artifacts
from hub.cache.artifacts import PARTIAL, SEAL, folder_bytes
from hub.cache.compilers import compiler_folder
from hub.cache.database import DATABASE
from hub.cache.measurements import Measurements
from hub.cache.store import Store
from hub.cache.upkeep import ASIDE_S, GRACE_S, STALE_S, clear, files_aside, find_broken, list_kept, prune
from hub.plan import Plan, PlannedCluster

NBYTES = 10_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def keep(store: Store, key: str, *, age_s: float, in_use: bool = False) -> Path:
    """Save an artifact of about 10 kB, last used some seconds ago."""
    folder = store.artifact("b", key)
    about = {"operators": [["aten.relu.default", 1]]}
    assert store.save(folder, lambda place: place.joinpath("data").write_bytes(b"x" * NBYTES) and None, about).is_done
    os.utime(folder / SEAL, (time.time() - age_s,) * 2)
    if not in_use:
        artifacts._in_use.discard(str(folder))
    return folder


def keep_plan(store: Store, key: str, *, age_s: float) -> Path:
    clusters = (PlannedCluster(name="c0", backend="b", nodes=("n",)),)
    store.keep_plan(key, Plan(graph="g", graph_digest="d", clusters=clusters, inputs=("float32[2]",)))
    path = store.root / "plans" / f"{key}.json"
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_what_is_kept_is_listed_least_recently_used_first(store: Store) -> None:
    """With its size, times, and what it is."""
    keep(store, "new", age_s=10)
    keep_plan(store, "plan", age_s=20)
    old = keep(store, "old", age_s=30)
    kept = list_kept(store.root)
    assert [(item.kind, item.backend, item.key) for item in kept] == [
        ("artifact", "b", "old"),
        ("plan", "", "plan"),
        ("artifact", "b", "new"),
    ]
    assert (kept[0].path, kept[0].about) == (old, {"operators": [["aten.relu.default", 1]]})
    assert kept[0].nbytes == folder_bytes(old) > NBYTES
    assert kept[1].about == {"backends": ["b"], "inputs": ["float32[2]"], "mode": "inference"}
    assert all(item.made.endswith("+00:00") for item in kept)
    assert time.time() - 31 < kept[0].used < time.time() - 29


def test_what_was_used_least_recently_goes_first(store: Store) -> None:
    """Until what is left fits, and no further."""
    folders = [keep(store, f"{age}", age_s=GRACE_S + age) for age in (10, 40, 20, 30)]
    done = prune(store.root, 2.5 * NBYTES)
    assert [item.key for item in done.removed] == ["40", "30"]
    assert [folder.exists() for folder in folders] == [True, False, True, False]
    assert done.nbytes == sum(folder_bytes(folder) for folder in folders) <= 2.5 * NBYTES
    assert prune(store.root, 2.5 * NBYTES).removed == ()


def test_a_use_saves_from_pruning(store: Store) -> None:
    """The order is that of the last use, not that of saving."""
    first, second = keep(store, "first", age_s=GRACE_S + 50), keep(store, "second", age_s=GRACE_S + 10)
    assert store.has_artifact(first)
    artifacts._in_use.discard(str(first))
    prune(store.root, 1.5 * NBYTES, grace_s=0.0)
    assert (first.exists(), second.exists()) == (True, False)


def test_nothing_that_this_process_uses_is_pruned(store: Store) -> None:
    """However old its last use, and however small the limit: its files may be about to be read."""
    used = keep(store, "used", age_s=10 * GRACE_S, in_use=True)
    checked = keep(store, "checked", age_s=10 * GRACE_S)
    store.has_artifact(checked)
    unused = keep(store, "unused", age_s=GRACE_S)
    assert [item.key for item in prune(store.root, 1.0, grace_s=0.0).removed] == ["unused"]
    assert (used.exists(), checked.exists(), unused.exists()) == (True, True, False)


def test_nothing_that_was_used_just_now_is_pruned(store: Store) -> None:
    """Another process may have saved it for one that has not loaded it yet."""
    folder = keep(store, "key", age_s=GRACE_S - 60)
    assert prune(store.root, 1.0).removed == ()
    assert prune(store.root, 1.0, grace_s=0.0).removed != ()
    assert not folder.exists()


def test_plans_are_pruned_too(store: Store) -> None:
    """They count, and go, like executables."""
    path = keep_plan(store, "plan", age_s=2 * GRACE_S)
    assert prune(store.root, 10_000).removed == ()
    assert [item.key for item in prune(store.root, 1.0).removed] == ["plan"]
    assert not path.exists()


def test_what_killed_processes_left_is_removed_once_it_is_old(store: Store) -> None:
    """What is being written just now stays, and so does whatever else lies in the folder."""
    keep(store, "key", age_s=0)
    keep_plan(store, "plan", age_s=0)
    places = (store.root / "artifacts" / "b" / f"{PARTIAL}x", store.root / "plans" / f"{PARTIAL}y")
    foreign = (store.root / f"{PARTIAL}z", store.root / "hub-bench", store.root / "notes.txt")
    for path in (places[0], *foreign[:2]):
        path.mkdir()
        (path / "data").write_bytes(b"x" * NBYTES)
    for path in (places[1], foreign[2]):
        path.write_text("half")
    assert prune(store.root, 1e9).leftovers == ()
    for path in (*places, *foreign):
        os.utime(path, (time.time() - STALE_S - 1,) * 2)
    assert prune(store.root, 1e9).leftovers == places
    assert not any(path.exists() for path in places)
    assert all(path.exists() for path in foreign)
    assert len(list_kept(store.root)) == 2


def test_files_that_were_set_aside_go_after_a_week(store: Store) -> None:
    """A person may want to look at them until then."""
    names = (f"{DATABASE}.broken-1", f"{DATABASE}.broken-1-wal", f"{DATABASE}.broken-2")
    old, log, new = (store.root / name for name in names)
    for path in (old, log, new):
        path.write_bytes(b"x")
    for path in (old, log):
        os.utime(path, (time.time() - ASIDE_S - 1,) * 2)
    assert files_aside(store.root) == (old, log, new)
    assert prune(store.root, 1e9).aside == (old, log)
    assert prune(store.root, 1e9, aside_s=0.0).aside == (new,)
    assert files_aside(store.root) == ()


def test_a_file_of_measurements_is_as_old_as_its_being_set_aside(store: Store) -> None:
    """However long ago it was written."""
    path = store.root / DATABASE
    path.write_bytes(b"no database" * 100)
    path.chmod(0o600)
    os.utime(path, (1000, 1000))
    Measurements.open(store.root)[0].close()
    assert len(files_aside(store.root)) == 1
    assert prune(store.root, 1e9).aside == ()


def test_corrupt_entries_are_named_and_removed_on_request(store: Store) -> None:
    """Each with its reason; what is whole stays."""
    good, bad = keep(store, "good", age_s=0), keep(store, "bad", age_s=0)
    path = keep_plan(store, "plan", age_s=0)
    assert find_broken(store.root) == ()
    (bad / "data").write_bytes(b"y")
    path.write_text("{}")
    (store.root / "artifacts" / "b" / "stray").write_text("what is this")
    found = find_broken(store.root)
    assert [(item.path.name, item.is_removed) for item in found] == [("bad", False), ("stray", False), ("plan.json", False)]
    assert "data is not as it was sealed" in found[0].reason
    assert all(item.is_removed for item in find_broken(store.root, repair=True))
    assert find_broken(store.root) == ()
    assert (good.exists(), bad.exists(), path.exists()) == (True, False, False)


def test_clearing_removes_what_is_the_hubs_and_nothing_else(store: Store) -> None:
    """A cache folder may hold other things: the user chooses it."""
    folder, path = keep(store, "key", age_s=0, in_use=True), keep_plan(store, "plan", age_s=0)
    (store.root / f"{DATABASE}.broken-1").write_bytes(b"x" * 100)
    (compiler_folder(store.root, "b") / "kernel.so").write_bytes(b"x")
    (store.root / "mine").mkdir()
    (store.root / "mine" / "thesis.tex").write_text("...")
    assert clear(store.root) > NBYTES
    assert not folder.exists()
    assert not path.exists()
    assert not list(store.root.glob("*.broken-*"))
    assert not (store.root / "compilers").exists()
    assert (store.root / "mine" / "thesis.tex").exists()


def test_a_cache_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    """And is not made by looking."""
    root = tmp_path / "none"
    assert list_kept(root) == ()
    assert find_broken(root) == ()
    assert prune(root, 1.0).removed == ()
    assert clear(root) == 0
    assert not root.exists()


def test_folders_that_vanish_while_they_are_measured_count_nothing(tmp_path: Path) -> None:
    """The hub asks for the size of what a worker writes while the worker renames it."""
    steps = 2_000
    place, away = tmp_path / "growing", tmp_path / "landed"
    (place / "deep" / "deeper").mkdir(parents=True)

    def rename() -> None:
        for _ in range(steps):
            place.rename(away)
            away.rename(place)

    renaming = threading.Thread(target=rename)
    renaming.start()
    while renaming.is_alive():
        assert folder_bytes(place) == 0
    renaming.join()
