"""Byte flips: whichever byte of the cache changes, no wrong result comes of it, and nothing crashes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import hub
from hub.cache import artifacts
from hub.cache.artifacts import SEAL, check_artifact
from hub.cache.database import DATABASE
from hub.cache.imports import IMPORTS, Imported, read_imports, write_imports
from hub.cache.measurements import Choice, Failure, Measurement, Measurements, Subject
from hub.cache.store import Store
from hub.plan import Plan, PlannedCluster
from hub.plugin.cost import Cost
from hub.process.environment import variables_set

SUBJECT = Subject("structure", "toy", "versions", "machine", 2, False, "fast", 1e-3, "modes")
SUBJECTS = tuple(replace(SUBJECT, structure=f"s{number}") for number in range(13))
WRITTEN, NEW = SUBJECTS[:12], SUBJECTS[12]
IMPORTED = {"mark": Imported("fatal", "killed by SIGSEGV", "2026-11-01"), "other": Imported("good", "", "2026-11-01")}
CHOICE = Choice("key", "a product", "toy", "{}", 1e-5, "2026-11-01")
PLAN = Plan(
    graph="g", graph_digest="d", clusters=(PlannedCluster(name="c0", backend="b", nodes=("n",)),), inputs=("float32[2]",)
)


def measurement(subject: Subject) -> Measurement:
    number = 1.0 + SUBJECTS.index(subject)
    return Measurement(subject, Cost(number, 0.0, 64, "measured", "alone"), number, {"flops": number}, "2026-11-01")


def failure(subject: Subject) -> Failure:
    return Failure(subject, "compile", f"failed on {subject.structure}", None, "2026-11-01")


def write(folder: Path) -> None:
    (folder / "deep").mkdir()
    for name in ("program.py", "deep/code.so", "deep/weights.bin"):
        (folder / name).write_bytes(random.Random(name).randbytes(400))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with an artifact, a plan, plugins' imports, and a database whose last rows are still in its log."""
    root = tmp_path_factory.mktemp("pristine") / "cache"
    store = Store(root)
    assert store.save(store.artifact("b", "key"), write).is_done
    store.keep_plan("key", PLAN)
    write_imports(root, IMPORTED)
    kept, _ = Measurements.open(root)
    for subject in WRITTEN[:6]:
        kept.keep(measurement(subject))
        kept.keep_failure(failure(subject))
    kept.close()
    kept, _ = Measurements.open(root)
    for subject in WRITTEN[6:]:
        kept.keep(measurement(subject))
        kept.keep_failure(failure(subject))
    kept.keep_profile("machine", 2, "{}")
    kept.keep_choice(CHOICE)
    copy = root.with_name("copy")
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns("*-shm"))
    kept.close()
    assert (copy / f"{DATABASE}-wal").stat().st_size > 0
    return copy


@pytest.fixture
def cache(pristine: Path, tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "cache"
    shutil.copytree(pristine, root)
    yield root
    artifacts._in_use.clear()


def flip(path: Path, chance: random.Random) -> str:
    """Change one random byte of a file; return its position."""
    data = bytearray(path.read_bytes())
    position = chance.randrange(len(data))
    data[position] ^= chance.randrange(1, 256)
    path.write_bytes(data)
    return f"byte {position} of {path.name}"


def flip_artifact(root: Path, chance: random.Random) -> None:
    """Check that every flip in a file of an artifact, or in its seal, is detected."""
    folder = root / "artifacts" / "b" / "key"
    where = flip(chance.choice([path for path in folder.rglob("*") if path.is_file()]), chance)
    assert check_artifact(folder).problem, where
    assert not Store(root).has_artifact(folder), where
    assert not folder.exists(), where


def flip_seal(root: Path, chance: random.Random) -> None:
    folder = root / "artifacts" / "b" / "key"
    where = flip(folder / SEAL, chance)
    assert not Store(root).has_artifact(folder), where


def flip_plan(root: Path, chance: random.Random) -> None:
    """Check that every flip in a plan is detected."""
    where = flip(root / "plans" / "key.json", chance)
    store = Store(root)
    assert store.plan("key") is None, where
    assert "is damaged; it was removed" in store.take_notes()[0], where


def flip_database(root: Path, chance: random.Random) -> None:
    """Check that the database returns what was written, or nothing, and that it keeps working."""
    where = flip(chance.choice((root / DATABASE, root / f"{DATABASE}-wal")), chance)
    kept, _ = Measurements.open(root)
    found, failed = kept.find_many(SUBJECTS), kept.find_failures(SUBJECTS)
    assert all(found[subject] == measurement(subject) for subject in found), where
    assert all(failed[subject] == failure(subject) for subject in failed), where
    assert all(one == failure(one.subject) for one in kept.failures()), where
    assert all(one == measurement(one.subject) for one in kept.samples("toy", "machine", 2)), where
    assert kept.profile("machine", 2) in (None, "{}"), where
    assert kept.find_choices([CHOICE.key]) in ({}, {CHOICE.key: CHOICE}), where
    kept.keep(measurement(NEW))
    kept.close()
    again, _ = Measurements.open(root)
    assert again.find(NEW) in (None, measurement(NEW)), where
    again.close()


def flip_imports(root: Path, chance: random.Random) -> None:
    """Check that every flip in the records of plugins' imports is detected."""
    where = flip(root / IMPORTS, chance)
    found = read_imports(root)
    assert found.found == {}, where
    assert "is damaged" in found.problem, where


FLIPS: tuple[Callable[[Path, random.Random], None], ...] = (
    flip_artifact,
    flip_seal,
    flip_plan,
    flip_database,
    flip_imports,
)


def flip_often(pristine: Path, cache: Path, number: int, seed: int) -> None:
    chance = random.Random(seed)
    for turn in range(number):
        FLIPS[turn % len(FLIPS)](cache, chance)
        shutil.rmtree(cache)
        shutil.copytree(pristine, cache)


def test_the_cache_before_any_flip_is_found(cache: Path) -> None:
    """Else the tests below would pass for want of anything to find."""
    store = Store(cache)
    assert store.has_artifact(store.artifact("b", "key"))
    assert store.plan("key") == PLAN
    assert read_imports(cache).found == IMPORTED
    kept, note = Measurements.open(cache)
    assert (note, kept.find_broken()) == ("", ())
    assert kept.find_many(SUBJECTS) == {subject: measurement(subject) for subject in WRITTEN}
    assert kept.find_failures(SUBJECTS) == {subject: failure(subject) for subject in WRITTEN}
    assert kept.profile("machine", 2) == "{}"
    assert kept.find_choices([CHOICE.key]) == {CHOICE.key: CHOICE}
    kept.close()


def test_flipped_bytes_give_no_wrong_answer(pristine: Path, cache: Path) -> None:
    """A few hundred; `make test-cache` flips ten thousand."""
    flip_often(pristine, cache, 500, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_flipped_bytes_give_no_wrong_answer(pristine: Path, cache: Path) -> None:
    """Of artefacts, seals, plans, plugins' imports and the database, a fifth each."""
    flip_often(pristine, cache, 10_000, seed=2)


# --- Through the whole of the hub -------------------------------------------------------------------------------------


def run_model(cache: Path, *backends: str, **options: object) -> tuple[bool, hub.Plan]:
    """Compile and run a small model with a cache; return whether the result is right, and the plan."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()
    x = torch.randn(3, 16)
    given = {"backends": list(backends), "tune": "off", "threads": 1, **options}
    compiled = torch.compile(model, backend="hub", options=given)
    with torch.no_grad(), variables_set({"HUB_CACHE_DIR": str(cache)}):
        result = compiled(x)
        is_right = torch.allclose(result, model(x), rtol=1e-5, atol=1e-6)
    (plan,) = hub.plans(compiled)
    return is_right, plan


def flip_and_run(cache: Path, backend: str, number: int, seed: int) -> None:
    """Check that the plan reports each flip in an executable, which is then compiled again."""
    chance = random.Random(seed)
    for _ in range(number):
        is_right, plan = run_model(cache, backend)
        assert is_right
        assert not [event for event in plan.events if event.stage not in ("verify", "later")]
        files = [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size and path.suffix != ".lock"]
        chosen = chance.choice(files)
        where = flip(chosen, chance)
        is_right, plan = run_model(cache, backend)
        assert is_right, where
        assert plan.backends == (backend,), where
        if "artifacts" in chosen.relative_to(cache).parts:
            (event,) = plan.events
            assert "not taken from the cache" in event.message, where
            assert "it was removed, compiled again" in event.message, where
        if chosen.name.startswith(DATABASE):  # each flip begins with a sound cache
            for path in cache.glob(f"{DATABASE}*"):
                path.unlink()


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_model_gives_the_right_result_after_flips(tmp_path: Path, backend: str) -> None:
    """A few; `make test-cache` tries more."""
    flip_and_run(tmp_path / "cache", backend, 5, seed=3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_model_gives_the_right_result_after_many_flips(tmp_path: Path, backend: str) -> None:
    """Of any file of the cache."""
    flip_and_run(tmp_path / "cache", backend, 150, seed=4)


def test_code_that_was_tampered_with_is_not_loaded(tmp_path: Path) -> None:
    """Inductor's executables are Python and shared libraries: what another process adds to them never runs."""
    cache = tmp_path / "cache"
    assert run_model(cache, "inductor")[0]
    (program,) = cache.rglob("program.py")
    mark = tmp_path / "it ran"
    program.write_text(f"open({str(mark)!r}, 'w')\n{program.read_text()}")
    is_right, plan = run_model(cache, "inductor")
    assert is_right
    assert not mark.exists()
    (event,) = plan.events
    assert "program.py is not as it was sealed; it was removed, compiled again" in event.message


def test_a_plan_that_was_tampered_with_is_not_replayed(tmp_path: Path) -> None:
    """It is made anew, and the new one says why."""
    cache, backends = tmp_path / "cache", ("onnxruntime", "openvino")
    assert run_model(cache, *backends, tune="fast", budget_s=2.0)[0]
    assert run_model(cache, *backends, tune="fast", budget_s=2.0)[1].decided_by == "replayed"
    (path,) = (cache / "plans").iterdir()
    path.write_text(path.read_text().replace('"threads": 1', '"threads": 2'))
    is_right, plan = run_model(cache, *backends, tune="fast", budget_s=2.0)
    assert is_right
    assert plan.decided_by == "measured whole plans"
    assert any(f"{path} is damaged; it was removed" in event.message for event in plan.events)


def test_an_executable_that_is_pruned_in_time_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache stays within the size that its setting gives, once no process has used it for a while."""
    cache = tmp_path / "cache"
    assert run_model(cache, "onnxruntime")[0]
    (folder,) = (cache / "artifacts" / "onnxruntime").iterdir()
    os.utime(folder / SEAL, (1000, 1000))
    artifacts._in_use.clear()
    monkeypatch.setenv("HUB_CACHE_GB", "1e-6")
    assert run_model(cache, "openvino")[0]
    assert not folder.exists()
