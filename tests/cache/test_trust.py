"""Trust: what others could have written is not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hub.cache.trust import distrust, distrust_root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a cache folder of this user's own, in a folder of this user's own."""
    folder = tmp_path / "above" / "cache"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent):
        path.chmod(0o755)
    return folder


def test_a_folder_of_ones_own_is_trusted(root: Path) -> None:
    """Others may read it: only writing matters."""
    assert distrust_root(root) == ""
    assert distrust(root) == ""


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_folder_that_others_may_write_is_not(root: Path, mode: int) -> None:
    """The reason says how to fix it."""
    root.chmod(mode)
    for reason in (distrust(root), distrust_root(root)):
        assert reason == f"others may write to {root}; chmod go-w {root}"


def test_a_folder_of_another_user_is_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not trusted even for the superuser, who would run what another user wrote."""
    monkeypatch.setattr(os, "getuid", lambda: root.stat().st_uid + 1)
    assert "belongs to another user" in distrust(root)
    assert "belongs to another user" in distrust_root(root)


def test_a_link_inside_the_cache_is_not(root: Path, tmp_path: Path) -> None:
    """The link leads to a folder that was not checked."""
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (root / "artifacts").symlink_to(tmp_path / "elsewhere")
    assert "is a link" in distrust(root / "artifacts")


def test_the_cache_folder_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    """To a larger disk, say. What it leads to is looked at."""
    (tmp_path / "link").symlink_to(root)
    assert distrust_root(tmp_path / "link") == ""
    root.chmod(0o777)
    assert "others may write" in distrust_root(tmp_path / "link")


def test_a_folder_above_that_all_may_write_is_not(root: Path) -> None:
    """Any user could put another cache in the place of this one."""
    root.parent.chmod(0o757)
    assert f"others may write to {root.parent}, above the cache" in distrust_root(root)


def test_a_sticky_folder_above_protects_what_is_in_it(root: Path) -> None:
    """As /tmp does."""
    root.parent.chmod(0o1777)
    assert distrust_root(root) == ""


def test_a_folder_above_may_be_shared_with_ones_own_group_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many systems give each user a group of that user alone, and a umask that lets it write."""
    root.parent.chmod(0o775)
    assert distrust_root(root) == ""
    monkeypatch.setattr(os, "getgid", lambda: root.parent.stat().st_gid + 1)
    assert "above the cache" in distrust_root(root)
