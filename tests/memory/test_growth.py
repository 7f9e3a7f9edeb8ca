"""Models that come and go leave the memory, files and threads of the process, and of its workers, as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hub.discovery.registry import registry

WARM = 3
"""Models after which libraries are loaded, pools started and the allocator's heap is as large as it will be."""
MANY_MB = 100
"""Megabytes by which many models may make the process, and its workers, grow."""
EVERY = registry().available()


def after_each(tmp_path: Path, kind: str, count: int, megabytes: int, **options: Any) -> list[dict[str, Any]]:
    """Return what a new process, and its workers, hold after each of some models."""
    given = {"kind": kind, "count": count, "megabytes": megabytes, "options": options}
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("run_models.py")), json.dumps(given)],
        env={
            **os.environ,
            "HUB_CACHE_DIR": str(tmp_path / "cache"),
            "HUB_CACHE_GB": "1",
            "TMPDIR": str(tmp_path / "temporary"),
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == count
    assert [each["failed"] for each in found] == [[]] * count
    assert [each["alive"] for each in found] == [0] * count, "weights live on"
    return found


def check_growth(found: list[dict[str, Any]], limit_mb: int) -> None:
    """Raise AssertionError if anything is larger at the end than after warm-up."""
    warm, last = found[WARM - 1], found[-1]
    assert last["own"]["megabytes"] - warm["own"]["megabytes"] < limit_mb
    for name in ("files", "threads"):
        assert last["own"][name] <= warm["own"][name], name
    assert last["own"]["mapped"] <= warm["own"]["mapped"] + len(found), "files stay mapped"
    assert last["temporary"] <= warm["temporary"] + 2
    most, end = (max((worker["megabytes"] for worker in each["workers"]), default=0) for each in (warm, last))
    assert end - most < limit_mb, "workers grow"
    assert len(last["workers"]) <= max(len(each["workers"]) for each in found[:WARM]) + 1


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_dozen_models_one_after_the_other_leave_no_memory_behind(tmp_path: Path) -> None:
    """240 MB of weights went through the process and a worker, which keep less than a quarter of it."""
    found = after_each(tmp_path, "infer", 12, 20, tune="off", backends=["inductor"])
    assert [each["backends"] for each in found] == [["inductor"]] * 12
    check_growth(found, 60)


# --- make test-lifetimes -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("backend", EVERY)
def test_a_hundred_models_of_one_backend_leave_less_than_100_mb(tmp_path: Path, backend: str) -> None:
    """5 GB of weights go through the process and its workers."""
    count = 20 if backend in ("tvm", "xla", "iree") else 100
    found = after_each(tmp_path, "infer", count, 50, tune="off", backends=[backend])
    assert [each["backends"] for each in found] == [[backend]] * count
    check_growth(found, MANY_MB)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("kind", "count"), [("train", 30), ("freeze", 30), ("change", 20), ("resize", 5)])
def test_many_models_leave_less_than_100_mb_however_they_are_used(tmp_path: Path, kind: str, count: int) -> None:
    """Trained, frozen, with weights that change, with 10,000 calls of changing sizes."""
    found = after_each(tmp_path, kind, count, 50 if kind != "resize" else 5, tune="off")
    check_growth(found, MANY_MB)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_hundred_models_that_every_backend_competes_for_leave_less_than_100_mb(tmp_path: Path) -> None:
    """Each plan has workers of its own, which rest or end."""
    check_growth(after_each(tmp_path, "infer", 100, 50, tune="fast"), MANY_MB)
