"""The cache: whole or absent, and never used where it cannot be trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hub.cache.store import SEAL, Store, seal
from hub.errors import CacheError
from hub.plan import Plan, PlannedCluster


def plan() -> Plan:
    return Plan(graph="g", graph_digest="d", clusters=(PlannedCluster(name="c0", backend="b", nodes=("n",)),), threads=2)


def test_a_plan_comes_back_equal(tmp_path: Path) -> None:
    """What was kept is read back as an equal value."""
    store = Store(tmp_path)
    store.keep_plan("key", plan())
    assert store.plan("key") == plan()
    assert store.plan("other") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}', "\x00\x01"])
def test_a_damaged_plan_counts_as_absent(tmp_path: Path, text: str) -> None:
    """A plan that cannot be read is made anew."""
    store = Store(tmp_path)
    store.keep_plan("key", plan())
    (tmp_path / "plans" / "key.json").write_text(text)
    assert store.plan("key") is None


def sealed(folder: Path) -> Path:
    """An artefact with a file in a folder of its own."""
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "code.so").write_bytes(b"code")
    seal(folder)
    return folder


def test_an_artefact_is_there_once_it_is_sealed(tmp_path: Path) -> None:
    """A folder that is missing, or without a seal, is none."""
    store = Store(tmp_path)
    folder = store.artifact("b", "key")
    assert not store.has_artifact(folder)
    assert store.has_artifact(sealed(folder))
    (folder / SEAL).unlink()
    assert not store.has_artifact(folder)


@pytest.mark.parametrize("name", ["deep/code.so", "extra", f"deep/{SEAL}"])
def test_an_artefact_counts_only_while_every_byte_is_as_sealed(tmp_path: Path, name: str) -> None:
    """A changed or added file makes it absent, wherever it lies and whatever it is called."""
    store = Store(tmp_path)
    folder = sealed(store.artifact("b", "key"))
    (folder / name).write_bytes(b"cod3")
    assert not store.has_artifact(folder)


def test_a_missing_file_makes_an_artefact_absent(tmp_path: Path) -> None:
    """An artefact that lost a file is not used."""
    store = Store(tmp_path)
    folder = sealed(store.artifact("b", "key"))
    (folder / "deep" / "code.so").unlink()
    assert not store.has_artifact(folder)


def test_a_manifest_of_the_plugin_is_a_file_like_any_other(tmp_path: Path) -> None:
    """Sealing leaves what a plugin saved, under whatever common name, as it was."""
    folder = tmp_path / "artefact"
    folder.mkdir()
    (folder / "manifest.json").write_text("mine")
    seal(folder)
    assert (folder / "manifest.json").read_text() == "mine"


def test_a_plugin_may_not_take_the_name_of_the_seal(tmp_path: Path) -> None:
    """A file of that name is refused, and not overwritten."""
    (tmp_path / SEAL).write_text("mine")
    with pytest.raises(CacheError, match=SEAL):
        seal(tmp_path)
    assert (tmp_path / SEAL).read_text() == "mine"


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """Code from a folder that anybody can write to is never loaded."""
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(CacheError, match="others may write"):
        Store(root)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """The message names the folder and the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cache_dir"):
        Store(tmp_path / "file" / "cache")
