"""`make bench-triton`, as far as it can be tried without a GPU: what it runs, what it writes, and how it judges."""

from __future__ import annotations

import contextlib
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import triton as benchmark
from benchmarks.triton_bars import judged, told
from hub.bench.models import load_model
from plugin_triton.backend import create
from plugin_triton.settings import Settings
from tests.plugin_disc.programs import PROGRAMS, inputs_of
from tests.plugin_triton.cases import CASES, HALF

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")

CHOSEN = Namespace(tune=0.0, budget=20.0)

# --- Programs on one device -------------------------------------------------------------------------------------------


def results_elsewhere(function: Callable[..., Any], values: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return results of inputs that lie on another device, one without memory. Raise what mixing devices raises."""
    found = function(*(value.to("meta") for value in values))
    return [found] if isinstance(found, torch.Tensor) else list(found)


FUNCTIONS: Mapping[str, Callable[[], list[torch.Tensor]]] = {
    **{f"program {name}": lambda name=name: results_elsewhere(PROGRAMS[name], inputs_of(name, 6, 24)) for name in PROGRAMS},
    **{f"case {name}": lambda case=case: results_elsewhere(case[0], case[1](9)) for name, case in CASES.items()},
    **{f"half {name}": lambda case=case: results_elsewhere(case[0], case[1](9)) for name, case in HALF.items()},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_runs_on_another_device_stays_there(name: str) -> None:
    """What a program makes by itself lies on the device of its inputs."""
    assert {value.device for value in FUNCTIONS[name]()} == {torch.device("meta")}


# --- Bars -------------------------------------------------------------------------------------------------------------


def row(program: str, own: str = "triton", *, of_copy: float = 1.0, is_fused: bool = False, **others: float) -> Any:
    """Return a run in which our own contender takes a second."""
    times = {own: 1.0, **{name.replace("_", "-"): seconds for name, seconds in others.items()}}
    return {"program": program, "call_s": times, "of_copy": of_copy, "is_fused": is_fused}


def outcomes(part: str, *rows: Any) -> list[tuple[Any, Any, bool]]:
    """Return the result for each bar, the run in which it was worst, and whether it was reached."""
    return [(bar["found"], bar["worst"], bar["is_reached"]) for bar in judged(part, rows)["bars"]]


def test_memory_has_to_come_near_a_copy_and_be_faster_than_inductor() -> None:
    """Each program the one, their geometric mean the other."""
    good = row("a", of_copy=0.9, inductor=2.0, max_autotune=1.0), row("b", of_copy=0.86, inductor=0.72, max_autotune=1.1)
    copied, inductor, tuned = outcomes("memory", *good)
    assert copied == (0.86, "b", True)
    assert inductor == (pytest.approx(1.2), "b", True)
    assert tuned == (pytest.approx(1.1**0.5), "a", True)
    slow = row("c", of_copy=0.84, inductor=0.1, max_autotune=0.1)
    assert [is_reached for *_, is_reached in outcomes("memory", *good, slow)] == [False, False, False]


def test_attention_is_held_against_the_best_that_runs() -> None:
    """A kernel that does not take the inputs is no rival; without any there is nothing to be reached."""
    assert outcomes("attention", row("a", flash=1.2, efficient=0.95), row("b", cuDNN=3.0)) == [(0.95, "a", True)]
    assert outcomes("attention", row("a", flash=1.2, cuDNN=0.8)) == [(0.8, "a", False)]
    assert outcomes("attention", row("a", eager=2.0)) == [(None, None, False)]


def test_products_have_a_bar_with_and_one_without_what_follows() -> None:
    """Fused ones have to be faster than two kernels."""
    assert outcomes("products", row("a", eager=0.95), row("a, GELU", is_fused=True, eager=0.99)) == [
        (0.95, "a", True),
        (0.99, "a, GELU", False),
    ]


def test_models_are_held_against_all_rivals() -> None:
    """If one of them failed, the best is unknown."""
    good = row("a", "hub", eager=1.5, inductor=1.3, max_autotune=1.0)
    assert outcomes("models", good) == [(1.0, "a", True), (pytest.approx(1.3), "a", True)]
    lacking = row("b", "hub", eager=1.5, inductor=1.3)
    (best, _) = judged("models", [good, lacking])["bars"]
    assert (best["is_reached"], best["lacking"]) == (False, ["b"])
    assert told(best).startswith("MISSED   best of eager, Inductor and max-autotune / hub, each: 1.00, at least 1")


@pytest.mark.parametrize("rows", [[], [{"program": "a", "error": "it broke"}]])
def test_what_was_not_measured_is_not_reached(rows: list[Any]) -> None:
    """Figures are never estimated."""
    assert not any(bar["is_reached"] or bar["found"] for bar in judged("memory", rows)["bars"])
    assert judged("memory", rows)["means"] == {}


def test_means_are_geometric() -> None:
    """Of each contender's time over ours."""
    assert judged("products", [row("a", eager=4.0), row("b", eager=1.0)])["means"] == {"eager": pytest.approx(2.0)}


# --- Runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use this CPU for a GPU, the interpreter for kernels, and a call that is made once for a clock."""
    monkeypatch.setattr(benchmark, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "none")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(benchmark, "DEVICE", "cpu")
    monkeypatch.setattr(benchmark, "create", lambda _: create(Settings(interpret=True)))
    monkeypatch.setattr(benchmark, "_kernel_s", lambda call: (call(), 1e-3)[1])
    monkeypatch.setattr(benchmark, "COPIED", 16)
    monkeypatch.setattr(benchmark, "ROWS", 24)
    monkeypatch.setattr(benchmark, "COLUMNS", 96)
    monkeypatch.setattr(benchmark, "PROGRAMS", {name: PROGRAMS[name] for name in ("swiglu", "batch_norm_pool")})
    monkeypatch.setattr(benchmark, "LENGTHS", (16,))
    monkeypatch.setattr(benchmark, "WIDTHS", (16,))
    monkeypatch.setattr(benchmark, "LAYERS", {"small": (7, 16, 24)})
    quick = dict.fromkeys(("inductor", "max-autotune"), benchmark._eager)
    monkeypatch.setattr(
        benchmark, "_inductors", lambda module, inputs: {label: way(module, inputs) for label, way in quick.items()}
    )


def run(monkeypatch: pytest.MonkeyPatch, file: Path, *arguments: str) -> Mapping[str, Any]:
    """Run the benchmark as from the command line, and return what it wrote."""
    monkeypatch.setattr(sys, "argv", ["triton", "--output", str(file), *arguments])
    benchmark.main()
    return json.loads(file.read_text())


@pytest.mark.usefixtures("gpu")
def test_kernels_are_timed_and_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part's runs, means and bars are written, with the GPU, the command and the machine."""
    written = run(monkeypatch, tmp_path / "found.json", "memory", "attention", "products")
    assert set(written) == {"memory", "attention", "products"}
    memory, attention, products = written["memory"], written["attention"], written["products"]
    assert (memory["gpu"], memory["command"]) == ("none", "python -m benchmarks.triton --tune 0 --budget 600")
    assert "cpu" in memory["machine"]
    assert [each["program"] for each in memory["runs"]] == ["swiglu", "batch_norm_pool"]
    assert memory["means"] == {"eager": 1.0, "inductor": 1.0, "max-autotune": 1.0}
    assert all(each["wrong_by"] < 1e-5 and each["of_copy"] > 0 for each in memory["runs"])
    assert [each["program"] for each in attention["runs"]] == ["16 keys, heads of 16", "16 keys, heads of 16, causal"]
    for each in attention["runs"]:
        assert set(each["call_s"]) | set(each["absent"]) == {"triton", "eager", "flash", "cuDNN", "efficient"}
    assert [(each["program"], each["is_fused"]) for each in products["runs"]] == [("small", False), ("small, GELU", True)]
    assert [len(written[part]["bars"]) for part in ("memory", "attention", "products")] == [3, 1, 2]


@pytest.mark.usefixtures("gpu")
def test_a_run_that_fails_loses_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is written with its error, as is a part that cannot begin; other entries stay, and the exit status is 1."""
    file = tmp_path / "found.json"
    file.write_text(json.dumps({"products": {"runs": ["of another day"]}}))
    seen: list[Any] = []

    def broken() -> Any:
        raise RuntimeError("an illegal memory access")

    def good() -> Any:
        seen.append(json.loads(file.read_text())["memory"]["runs"])
        return {"call_s": {"triton": 1.0, "inductor": 2.0}, "of_copy": 1.0}

    def no_time() -> Any:
        return {"call_s": {"triton": 0.0}}

    def absent(_: Any) -> Any:
        raise MemoryError("no memory for a copy")
        yield

    parts = {"memory": lambda _: iter([("a", broken), ("b", good), ("c", no_time), ("d", good)]), "attention": absent}
    monkeypatch.setattr(benchmark, "PARTS", parts)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, file, "memory", "attention")
    assert ended.value.code == 1
    written = json.loads(file.read_text())
    assert written["products"] == {"runs": ["of another day"]}
    assert [each["program"] for each in written["memory"]["runs"]] == ["a", "b", "c", "d"]
    assert [each.get("error") for each in written["memory"]["runs"]] == [
        "RuntimeError: an illegal memory access",
        None,
        "ValueError: no time was taken: {'triton': 0.0}",
        None,
    ]
    assert [len(each) for each in seen] == [1, 3]
    assert written["memory"]["means"] == {"inductor": 2.0}
    assert not any(bar["is_reached"] for bar in written["memory"]["bars"])
    assert written["attention"]["runs"] == [{"program": "attention", "error": "MemoryError: no memory for a copy"}]


@pytest.mark.usefixtures("gpu")
def test_wrong_results_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be fast."""
    monkeypatch.setattr(benchmark, "WRONG", -1.0)
    row, *_ = benchmark._runs("products", CHOSEN)
    assert "Triton's results are off by" in row["error"]


@pytest.mark.usefixtures("gpu")
def test_a_contender_that_fails_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason; the others are timed."""

    @contextlib.contextmanager
    def failing() -> Any:
        raise RuntimeError("no template fits")
        yield

    monkeypatch.setattr(benchmark, "_inductors", lambda *_: {"inductor": failing})
    row, *_ = benchmark._runs("memory", CHOSEN)
    assert row["absent"] == {"inductor": "RuntimeError: no template fits"}
    assert set(row["call_s"]) == {"triton", "eager"}


@pytest.mark.usefixtures("gpu")
def test_without_a_gpu_nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And nothing is written."""
    monkeypatch.setattr(benchmark, "_has_gpu", lambda: False)
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path / "found.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_models_are_tuned_planned_and_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's kernels are tuned for as long as is set; eager continues if it cannot be recorded."""
    monkeypatch.setattr(benchmark, "MODELS", ("bert",))
    monkeypatch.setattr(benchmark, "BATCHES", (2,))
    monkeypatch.setattr(benchmark, "DTYPES", (torch.float32,))
    monkeypatch.setattr(benchmark, "ROUNDS", 2)
    monkeypatch.setattr(benchmark, "load_model", lambda name, batch: load_model(name, batch=batch, small=True))
    monkeypatch.setenv("HUB_TRITON_INTERPRET", "1")
    with torch.no_grad():
        (row,) = benchmark._runs("models", Namespace(tune=1.0, budget=20.0))
    assert "error" not in row, row
    assert set(row["call_s"]) == {"hub", "eager", "inductor", "max-autotune"}
    assert row["tuned"] == ["triton: nothing to time: the interpreter is not a GPU"]
    assert row["notes"]["eager"].startswith("not as a CUDA graph: ")
    assert row["plan"]
    assert any("not a tensor on a GPU" in event for event in row["events"])
    assert row["wrong_by"] < 1e-4
