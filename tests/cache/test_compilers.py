"""Folders for what compilers keep: the hub's own rules hold for them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hub.cache.compilers import compiler_folder
from hub.errors import CacheError


def test_a_folder_is_made_closed_to_others(tmp_path: Path) -> None:
    """With all that is above it in the cache."""
    folder = compiler_folder(tmp_path / "above" / "cache", "toy")
    assert folder == tmp_path / "above" / "cache" / "compilers" / "toy"
    for place in (folder, folder.parent, folder.parents[1]):
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert compiler_folder(tmp_path / "above" / "cache", "toy") == folder


@pytest.mark.parametrize("open_to_others", ["cache", "cache/compilers", "cache/compilers/toy"])
def test_what_others_may_write_is_refused(tmp_path: Path, open_to_others: str) -> None:
    """The reason says how to fix it."""
    compiler_folder(tmp_path / "cache", "toy")
    (tmp_path / open_to_others).chmod(0o777)
    with pytest.raises(CacheError, match="chmod go-w"):
        compiler_folder(tmp_path / "cache", "toy")


def test_a_link_inside_the_cache_is_refused(tmp_path: Path) -> None:
    """The link leads to a folder that was not checked."""
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "compilers").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="is a link"):
        compiler_folder(tmp_path / "cache", "toy")


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    """Of the hub's own."""
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CacheError, match="cannot be made"):
        compiler_folder(tmp_path / "cache", "toy")
