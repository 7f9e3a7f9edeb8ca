"""The cache: whole or absent, and never used where it cannot be trusted."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from hub.cache import artifacts
from hub.cache.artifacts import FOLDER, LOCKS, PARTIAL, SEAL, check_artifact, discard_artifact, save_artifact
from hub.cache.store import Store
from hub.errors import CacheError, CompileError
from hub.plan import Plan, PlannedCluster


def plan() -> Plan:
    return Plan(graph="g", graph_digest="d", clusters=(PlannedCluster(name="c0", backend="b", nodes=("n",)),), threads=2)


def write(folder: Path) -> None:
    """Write what a plugin may save: a file, and one in a subfolder."""
    (folder / "deep").mkdir()
    (folder / "deep" / "code.so").write_bytes(b"code")
    (folder / "model").write_bytes(b"model")


def saved(store: Store, key: str = "key", fill: Callable[[Path], None] = write) -> Path:
    """Return the folder of a saved artifact."""
    folder = store.artifact("b", key)
    result = store.save(folder, fill)
    assert (result.is_done, result.problem) == (True, "")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def leftovers(store: Store) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.name.startswith(PARTIAL)]


# --- Plans ------------------------------------------------------------------------------------------------------------


def test_a_plan_comes_back_equal(store: Store) -> None:
    """What was kept is read back as an equal value."""
    store.keep_plan("key", plan())
    assert store.plan("key") == plan()
    assert store.plan("other") is None
    assert store.take_notes() == ()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', "\x00\x01", plan().to_json()])
def test_a_damaged_plan_is_removed_with_a_note(store: Store, text: str) -> None:
    """A plan that is not as it was sealed is made anew, even where it could be read."""
    store.keep_plan("key", plan())
    path = store.root / "plans" / "key.json"
    path.write_text(text)
    assert store.plan("key") is None
    assert store.take_notes() == (f"not taken from the cache: {path} is damaged; it was removed",)
    assert not path.exists()


def test_a_plan_is_for_its_own_key_only(store: Store) -> None:
    """A sealed file under another name is not taken for what belongs there."""
    store.keep_plan("key", plan())
    (store.root / "plans" / "key.json").rename(store.root / "plans" / "other.json")
    assert store.plan("other") is None
    assert "holds what was sealed as key" in store.take_notes()[0]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_plan_that_others_may_write_is_not_read(store: Store, what: str) -> None:
    """It could send the model wherever they like."""
    store.keep_plan("key", plan())
    path = store.root / "plans" / "key.json"
    (path if what == "file" else path.parent).chmod(0o777)
    assert store.plan("key") is None
    assert "others may write" in store.take_notes()[0]


def test_a_plan_that_cannot_be_written_is_no_failure(store: Store) -> None:
    """And leaves nothing behind."""
    (store.root / "plans" / "key.json").mkdir(parents=True)
    store.keep_plan("key", plan())
    assert leftovers(store) == []


# --- Artefacts --------------------------------------------------------------------------------------------------------


def test_an_artefact_is_there_once_it_is_saved(store: Store) -> None:
    """A folder that is missing, or without a seal, is none."""
    folder = store.artifact("b", "key")
    assert not store.has_artifact(folder)
    assert store.take_notes() == ()
    assert store.has_artifact(saved(store))
    assert (folder / "deep" / "code.so").read_bytes() == b"code"
    (folder / SEAL).unlink()
    assert not store.has_artifact(folder)
    assert "has no seal; it was removed" in store.take_notes()[0]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def to_link(path: Path) -> None:
    copy = path.parent.parent / "copy"
    path.rename(copy)
    path.symlink_to(copy)


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda folder: flip(folder / "deep" / "code.so"), "code.so is not as it was sealed"),
    "a flipped seal": (lambda folder: flip(folder / SEAL), f"{SEAL} is damaged"),
    "a truncated file": (lambda folder: os.truncate(folder / "model", 1), "model is not as it was sealed"),
    "a missing file": (lambda folder: (folder / "model").unlink(), "model is missing"),
    "an added file": (lambda folder: (folder / "extra").touch(0o600), "extra was added"),
    "an added folder": (lambda folder: (folder / "extra").mkdir(0o700), "extra was added"),
    "a second seal": (lambda folder: (folder / "deep" / SEAL).touch(0o600), f"deep/{SEAL} was added"),
    "a link": (lambda folder: to_link(folder / "model"), "model is a link"),
    "a pipe": (lambda folder: to_pipe(folder / "model"), "model is neither a file nor a folder"),
    "a seal that is a pipe": (lambda folder: to_pipe(folder / SEAL), f"{SEAL} is damaged"),
    "a file that others may write": (lambda folder: (folder / "model").chmod(0o666), "others may write to"),
    "a folder in it that others may write": (lambda folder: (folder / "deep").chmod(0o777), "others may write to"),
    "a folder that others may write": (lambda folder: folder.chmod(0o777), "others may write to"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_an_artefact_counts_only_while_all_is_as_it_was_sealed(store: Store, name: str) -> None:
    """It is not used, but removed, with a note of what was wrong; the next one takes its place."""
    spoil, reason = SPOILED[name]
    folder = saved(store)
    spoil(folder)
    assert not store.has_artifact(folder)
    notes = store.take_notes()
    assert len(notes) == 1
    assert reason in notes[0]
    assert "; it was removed" in notes[0]
    assert not os.path.lexists(folder)
    assert store.has_artifact(saved(store))
    assert leftovers(store) == []


def test_an_artefact_is_for_its_own_key_and_backend_only(store: Store) -> None:
    """Intact code in a wrong place would be the wrong code."""
    for place in (store.artifact("b", "other"), store.artifact("other", "key")):
        folder = saved(store)
        place.parent.mkdir(exist_ok=True)
        folder.rename(place)
        assert "holds what was sealed as b/key" in check_artifact(place).problem


@pytest.mark.parametrize("depth", [1, 2, 3], ids=["backend", "artifacts", "root"])
def test_a_folder_on_the_way_that_others_may_write_ends_its_use(store: Store, depth: int) -> None:
    """Neither is anything loaded from there nor saved to it."""
    folder = saved(store)
    place = (folder, *folder.parents)[depth]
    place.chmod(0o777)
    assert f"others may write to {place}" in check_artifact(folder).problem
    assert f"others may write to {place}" in save_artifact(folder, write).problem


def test_a_link_on_the_way_ends_its_use(store: Store, tmp_path: Path) -> None:
    """Artefacts lie in the cache folder, and nowhere else."""
    folder = saved(store)
    folder.parent.rename(tmp_path / "elsewhere")
    folder.parent.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in check_artifact(folder).problem


def test_others_never_may_write_what_is_saved(store: Store) -> None:
    """Whatever the umask, and whatever modes a plugin gives its files."""
    before = os.umask(0)
    try:

        def fill(folder: Path) -> None:
            write(folder)
            (folder / "deep" / "code.so").chmod(0o777)

        assert store.has_artifact(saved(store, fill=fill))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o022 for path in store.root.rglob("*")}
    assert modes == {0}


def test_files_of_a_plugin_may_have_any_name_but_the_seals(store: Store) -> None:
    """Sealing leaves what a plugin saved as it was; a file of the seal's name is refused."""

    def fill(folder: Path) -> None:
        (folder / "manifest.json").write_text("mine")

    assert (saved(store, fill=fill) / "manifest.json").read_text() == "mine"
    result = store.save(store.artifact("b", "other"), lambda folder: (folder / SEAL).touch())
    assert not result.is_done
    assert SEAL in result.problem


def test_a_plugin_may_not_save_links(store: Store, tmp_path: Path) -> None:
    """What they lead to would change or vanish, and is not the hub's to check."""
    result = store.save(store.artifact("b", "key"), lambda folder: (folder / "link").symlink_to(tmp_path))
    assert not result.is_done
    assert "is a link" in result.problem
    assert leftovers(store) == []


def failing(folder: Path) -> None:
    write(folder)
    raise CompileError("it cannot be saved\nbecause of this")


def test_a_plugin_that_cannot_save_leaves_nothing(store: Store) -> None:
    """The problem is its first line."""
    result = store.save(store.artifact("b", "key"), failing)
    assert (result.is_done, result.problem) == (False, "it cannot be saved")
    assert leftovers(store) == []
    assert not store.artifact("b", "key").exists()


def test_a_plugin_that_writes_beside_its_folder_is_named(store: Store) -> None:
    """What would be left behind by a plugin that takes the folder's name for a prefix goes, and its artefact is none."""

    def beside(folder: Path) -> None:
        write(folder)
        folder.with_suffix(".bin").write_text("weights")

    result = store.save(store.artifact("b", "key"), beside)
    assert not result.is_done
    assert "artifact.bin outside the folder" in result.problem
    assert leftovers(store) == []
    assert not store.artifact("b", "key").exists()


def test_what_another_process_saved_meanwhile_stays(store: Store) -> None:
    """Its files may be in use; one that was damaged meanwhile is replaced."""
    folder = store.artifact("b", "key")

    def slow(partial: Path) -> None:
        write(partial)
        saved(store)

    first = store.save(folder, slow)
    assert first.is_done
    inode = folder.stat().st_ino
    assert store.save(folder, write).is_done
    assert folder.stat().st_ino == inode
    flip(folder / "model")
    assert store.save(folder, write).is_done
    assert folder.stat().st_ino != inode
    assert store.has_artifact(folder)


def test_what_another_process_mended_meanwhile_is_not_removed(store: Store) -> None:
    """Two processes may find the same damage; the slower one must not take the new artefact away."""
    folder = saved(store)
    assert not discard_artifact(folder)
    assert store.has_artifact(folder)
    store.discard(folder)
    assert not folder.exists()


def test_many_threads_that_save_the_same_artefact_leave_one(store: Store) -> None:
    """It is whole, with nothing next to it."""
    folder = store.artifact("b", "key")
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(store.save(folder, write).is_done)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 16
    assert store.has_artifact(folder)
    assert leftovers(store) == []
    assert [path.name for path in folder.parent.iterdir()] == ["key"]


def test_a_lock_that_is_held_for_long_costs_the_saving_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped, not killed, does not block others forever."""
    monkeypatch.setattr(artifacts, "LOCK_S", 0.05)
    saved(store)
    (lock,) = (store.root / LOCKS).iterdir()
    with FileLock(lock):
        result = store.save(store.artifact("b", "key"), write)
    assert not result.is_done
    assert "lock" in result.problem
    assert leftovers(store) == []


def test_the_last_use_is_remembered(store: Store) -> None:
    """By checking an artefact in order to use it, or by reading a plan, and by no other look."""
    folder = saved(store)
    store.keep_plan("key", plan())
    marks = (folder / SEAL, store.root / "plans" / "key.json")
    for mark in marks:
        os.utime(mark, (1000, 1000))
    check_artifact(folder, is_wanted=False)
    assert [mark.stat().st_mtime for mark in marks] == [1000, 1000]
    store.has_artifact(folder)
    store.plan("key")
    assert all(mark.stat().st_mtime > 1000 for mark in marks)


def test_a_plan_that_cannot_be_written_is_told(store: Store) -> None:
    """With the place and the reason; nothing partial stays."""
    assert store.keep_plan("key", plan()) == ""
    shutil.rmtree(store.root / "plans")
    (store.root / "plans").write_text("")
    assert store.keep_plan("key", plan()) == f"{store.root / 'plans'} cannot be written: File exists"


# --- The folder -------------------------------------------------------------------------------------------------------


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Code from a folder that other users can write to is never loaded."""
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(CacheError, match="others may write"):
        Store(root)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """The message names the folder and the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="HUB_CACHE_DIR"):
        Store(tmp_path / "file" / "cache")


def test_what_is_made_is_its_owners_alone(store: Store) -> None:
    """Every folder of the cache, so that a later opening trusts it."""
    before = os.umask(0)
    try:
        saved(store)
        store.keep_plan("key", plan())
    finally:
        os.umask(before)
    folders = (store.root, store.root / FOLDER, store.root / FOLDER / "b", store.root / LOCKS, store.root / "plans")
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
