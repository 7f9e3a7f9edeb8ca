"""What tuning found: bounded on its own, and the least recently used kernels are removed first."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hub.cache.tuning import clear_tuned, list_tuned, note_use, prune_tuned, tuning_folder
from hub.cache.upkeep import ASIDE_S, clear, prune

NBYTES = 1000


def keep(root: Path, name: str, *, age_s: float, backend: str = "tvm") -> Path:
    """Make a kernel's folder of 1 kB, last used some seconds ago."""
    folder = tuning_folder(root, backend) / name
    folder.mkdir(parents=True)
    (folder / "records").write_bytes(b"x" * NBYTES)
    os.utime(folder, (time.time() - age_s,) * 2)
    return folder


def names(root: Path) -> list[str]:
    return [tuned.path.name for tuned in list_tuned(root)]


def test_kernels_of_all_backends_are_listed_least_recently_used_first(tmp_path: Path) -> None:
    """With backend and size; a cache without any has none."""
    assert list_tuned(tmp_path) == ()
    keep(tmp_path, "new", age_s=10)
    keep(tmp_path, "old", age_s=30, backend="other")
    assert [(tuned.backend, tuned.path.name, tuned.nbytes) for tuned in list_tuned(tmp_path)] == [
        ("other", "old", NBYTES),
        ("tvm", "new", NBYTES),
    ]


def test_what_was_used_least_recently_goes_until_the_rest_fits(tmp_path: Path) -> None:
    """A use counts, and what fits stays."""
    used = keep(tmp_path, "used", age_s=40)
    for name, age_s in (("oldest", 30), ("older", 20), ("new", 10)):
        keep(tmp_path, name, age_s=age_s)
    note_use(used)
    removed = prune_tuned(tmp_path, most_bytes=2.5 * NBYTES, aside_s=ASIDE_S)
    assert [tuned.path.name for tuned in removed] == ["oldest", "older"]
    assert names(tmp_path) == ["new", "used"]
    assert prune_tuned(tmp_path, most_bytes=2.5 * NBYTES, aside_s=ASIDE_S) == ()


def test_what_was_put_aside_goes_after_a_week_or_before_any_other(tmp_path: Path) -> None:
    """It is never read again, but a person may want to look at it."""
    keep(tmp_path, "kernel", age_s=ASIDE_S + 200)
    keep(tmp_path, "old.damaged0", age_s=ASIDE_S + 100)
    keep(tmp_path, "new.damaged0", age_s=100)
    prune_tuned(tmp_path, aside_s=ASIDE_S)
    assert names(tmp_path) == ["kernel", "new.damaged0"]
    prune_tuned(tmp_path, most_bytes=1.5 * NBYTES, aside_s=ASIDE_S)
    assert names(tmp_path) == ["kernel"]


def test_upkeep_of_the_cache_bounds_what_tuning_found_and_clears_none_of_it(tmp_path: Path) -> None:
    """It does not count for the cache's own size, which would trade hours of tuning for executables."""
    keep(tmp_path, "kernel", age_s=10_000)
    keep(tmp_path, "kernel.damaged0", age_s=ASIDE_S + 100)
    done = prune(tmp_path, 0.0, grace_s=0.0)
    assert ([tuned.path.name for tuned in done.tuned], done.nbytes) == (["kernel.damaged0"], 0)
    assert clear(tmp_path) == 0
    assert names(tmp_path) == ["kernel"]
    assert [tuned.path.name for tuned in clear_tuned(tmp_path)] == ["kernel"]
    assert names(tmp_path) == []


def test_links_are_left_alone(tmp_path: Path) -> None:
    """What they point to is not the hub's."""
    kept = keep(tmp_path / "elsewhere", "kernel", age_s=10)
    tuning_folder(tmp_path, "tvm").parent.mkdir()
    tuning_folder(tmp_path, "tvm").symlink_to(kept.parent)
    assert clear_tuned(tmp_path) == ()
    assert kept.exists()
