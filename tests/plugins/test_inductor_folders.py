"""Where Inductor keeps its libraries: nowhere that others could have put one first."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from plugin_inductor import folders
from plugin_inductor.backend import create, relu_cluster
from plugin_inductor.compiler import compiling
from plugin_inductor.folders import VARIABLE, trusted_place
from torch._inductor import config
from torch._inductor.runtime.cache_dir_utils import cache_dir

from hub.errors import CompileError
from hub.plugin.backend import CompileSettings

SETTINGS = CompileSettings(threads=1)


@pytest.fixture
def default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return Inductor's default folder, which does not exist yet, in this test's temporary folder; nothing is set."""
    folder = tmp_path / "temporary" / "torchinductor_me"
    folder.parent.mkdir(mode=0o755)
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(folders, "default_cache_dir", lambda: str(folder))
    return folder


def cache_root() -> Path:
    return Path(os.environ["HUB_CACHE_DIR"])


def test_a_new_folder_is_closed_to_others(default: Path) -> None:
    """Inductor itself would make it as the umask says."""
    place = trusted_place()
    assert (place.folder, place.has_headers, place.problem) == (default, True, "")
    assert stat.S_IMODE(default.stat().st_mode) == 0o700


def test_a_folder_of_ones_own_is_used(default: Path) -> None:
    """Others may read it, as most umasks allow."""
    (default / "ab").mkdir(parents=True)
    for path in (default, default / "ab"):
        path.chmod(0o755)
    (default / "ab" / "kernel.so").touch(0o755)
    assert trusted_place().folder == default


def _open(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def _open_inside(folder: Path) -> None:
    (folder / "ab").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "ab").chmod(0o775)


def _open_file(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "kernel.so").touch()
    (folder / "kernel.so").chmod(0o666)


def _link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def _file(folder: Path) -> None:
    folder.touch(0o600)


def _above(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    folder.parent.chmod(0o777)


SPOILED: dict[str, tuple[Callable[[Path], None], str]] = {
    "others may write": (_open, "others may write to"),
    "a folder inside": (_open_inside, "others could have written"),
    "a file inside": (_open_file, "others could have written"),
    "a link": (_link, "is a link"),
    "a file": (_file, "cannot be used"),
    "the folder above": (_above, "others may write to"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_folder_that_others_could_have_written_is_not_used(default: Path, name: str) -> None:
    """One in the hub's cache is, and compiled headers, which stay in the default folder, are not."""
    spoil, reason = SPOILED[name]
    spoil(default)
    place = trusted_place()
    assert place.folder == cache_root() / "compilers" / "inductor"
    assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
    assert not place.has_headers
    assert reason in place.problem
    assert str(place.folder) in place.problem


def test_a_folder_of_another_user_is_not_used(default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user who made it first could fill it."""
    default.mkdir(mode=0o700)
    monkeypatch.setattr("hub.cache.trust.os.getuid", lambda: default.stat().st_uid + 1)
    with pytest.raises(CompileError, match="belongs to another user") as caught:  # and so does the hub's own, here
        trusted_place()
    assert VARIABLE in str(caught.value)


def test_a_folder_that_was_open_is_used_once_it_is_mended(default: Path) -> None:
    """In the same process."""
    _open_file(default)
    assert trusted_place().folder != default
    (default / "kernel.so").unlink()
    assert trusted_place().folder == default


def test_the_users_folder_wins(default: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users may write to it; headers are nevertheless of the default folder."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o777)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine"))
    assert trusted_place() == folders.Place(tmp_path / "mine")
    default.chmod(0o777)
    assert trusted_place() == folders.Place(tmp_path / "mine", has_headers=False)


def test_what_inductor_sets_itself_is_not_the_users(default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes its default into the variable, which workers inherit."""
    monkeypatch.setenv(VARIABLE, str(default))
    _open(default)
    assert trusted_place().folder == cache_root() / "compilers" / "inductor"


def test_compilations_use_the_folder_and_leave_no_trace(default: Path) -> None:
    """The variable is the user's again afterwards."""
    _open(default)
    has_headers = config.cpp_cache_precompile_headers
    with compiling(SETTINGS, has_weights=False):
        assert cache_dir() == str(cache_root() / "compilers" / "inductor")
        assert not config.cpp_cache_precompile_headers
    assert VARIABLE not in os.environ
    assert config.cpp_cache_precompile_headers == has_headers


@pytest.mark.slow
def test_a_program_is_compiled_where_nobody_else_may_write(default: Path) -> None:
    """And the probe says why, for `hub doctor`."""
    _open(default)
    executable = create().compile(relu_cluster(), SETTINGS)
    assert executable(torch.tensor([-1.0, 0.0, 1.0, 2.0]))[0].tolist() == [0.0, 0.0, 1.0, 2.0]
    assert not list(default.iterdir())
    found = create().probe()
    assert found.accepted
    assert "Inductor's own cache is not used: others may write to" in found.reason
