"""The race: each contender in its own process, failures named, statistics that survive a noisy machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from hub.bench import contenders as contenders_module
from hub.bench.closeness import difference, tensors_in
from hub.bench.contenders import INLINE, ISOLATED, Contender, contenders, more_names
from hub.bench.race import Race, Task, race
from hub.bench.result import Benchmark, Interval, Result, against_others, ranked
from hub.bench.table import benchmark_text
from hub.bench.whole import benchmark
from hub.errors import AccuracyError, HubError
from hub.report.progress import Progress

PEERS = """
import os, traceback

def right(module, inputs):
    return lambda: module(*inputs)

def wrong(module, inputs):
    return lambda: module(*inputs) * 1.1

def short(module, inputs):
    return lambda: module(*inputs)[:1]

def raising(module, inputs):
    raise ValueError("no such kernel")

def crashing(module, inputs):
    os.abort()

def late(module, inputs):
    def run():
        if any(frame.name == "block" for frame in traceback.extract_stack()):
            os._exit(3)
        return module(*inputs)
    return run
"""


SLOW_PEER = """
import time

def slow(module, inputs):
    def run():
        time.sleep(0.05)
        return module(*inputs)
    return run
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Race:
    """Return one race with a contender for each kind of failure, on a tiny model."""
    folder = tmp_path_factory.mktemp("peers")
    (folder / "toy_peers.py").write_text(PEERS)
    field = [
        Contender("eager"),
        *(Contender(name, f"toy_peers:{name}") for name in ("right", "wrong", "short", "raising", "crashing", "late")),
        Contender("absent", "toy_peers:right", unavailable="toylib is not installed"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        task = Task("mlp", batch=4, threads=1, rounds=3, block_s=0.005, small=True)
        return race(field, task, Progress())


def result(outcome: Race, name: str) -> Result:
    return next(one for one in outcome.results if one.name == name)


def test_contenders_are_timed_in_every_round(outcome: Race) -> None:
    """Each that runs has one block a round, and its distance from eager."""
    for name in ("eager", "right"):
        one = result(outcome, name)
        assert (one.failure, len(one.blocks_s), one.max_abs_error) == ("", 3, 0.0)
        assert one.calls >= 9
        assert all(cores > 0 for cores in one.blocks_cores)
        assert len(one.blocks_cores) == 3
        assert one.peak_bytes is not None
    assert (outcome.inputs, outcome.threads) == (("float32[4, 32]",), 1)


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("wrong", "accuracy", "wrong by 1.0e-01 of the largest value, 1e-03 allowed"),
        ("short", "accuracy", "shape [1, 32] instead of [4, 32]"),
        ("raising", "compile", "ValueError: no such kernel"),
        ("crashing", "compile", "killed by SIGABRT"),
        ("late", "runtime", "exit status 3"),
        ("absent", "unavailable", "toylib is not installed"),
    ],
)
def test_a_contender_that_fails_is_reported_with_the_reason(outcome: Race, name: str, kind: str, reason: str) -> None:
    """No contender is dropped silently, and a wrong result cannot win."""
    one = result(outcome, name)
    assert (one.failure_kind, one.call_s) == (kind, None)
    assert reason in one.failure


def test_a_wrong_result_is_timed_for_the_error_aware_score(outcome: Race) -> None:
    """That score counts it at the tolerances at which it is right, and at no other."""
    one = result(outcome, "wrong")
    assert one.wrong_call_s is not None
    assert one.tolerance in (-1, 0)
    assert result(outcome, "right").tolerance == -10


def test_hopeless_contenders_get_few_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times the fastest is not worth all rounds, and ratios are over the rounds that both were in."""
    (tmp_path / "slow_peers.py").write_text(SLOW_PEER)
    monkeypatch.syspath_prepend(tmp_path)
    task = Task("mlp", batch=4, threads=1, rounds=6, block_s=0.005, small=True)
    found = race([Contender("eager"), Contender("slow", "slow_peers:slow")], task, Progress())
    fast, slow = ranked(found.results)
    assert (fast.name, len(fast.blocks_s), len(slow.blocks_s)) == ("eager", 6, 4)
    assert slow.to_best is not None


def test_a_backend_that_the_plan_does_not_use_is_not_left_out_again() -> None:
    """The hub without it would run the same plan, so it is not timed: its time is the hub's."""
    task = Task("mlp", given={"backends": ("eager",)}, threads=1, rounds=3, block_s=0.005, small=True, is_fresh=True)
    whole, left_out = race(contenders(["hub-openvino"]), task, Progress()).results
    assert whole.backends == ("eager",)
    assert (left_out.same_as, left_out.blocks_s, left_out.failure) == ("hub", (), "")


def test_the_hub_runs_against_eager_end_to_end() -> None:
    """The whole benchmark gives a table and JSON with everything needed to read the numbers."""
    run = benchmark(
        "mlp", ["eager"], rounds=3, options={"threads": 1, "backends": ["eager"]}, small=True, command=["hub", "bench"]
    )
    assert {one.name for one in run.results} == {"hub", "eager"}
    assert all(not one.failure for one in run.results)
    assert next(one.note for one in run.results if one.name == "hub")
    assert (run.best_other, run.command, run.threads) == ("eager", "hub bench", 1)
    assert run.machine.libraries["torch"] == torch.__version__
    assert Benchmark.model_validate(json.loads(run.to_json())) == run
    text = benchmark_text(run)
    assert re.search(r"hub takes \d+\.\d{3}x the time of eager, the best of the others", text)


@pytest.mark.slow
def test_what_isolation_costs_is_told_beside_its_bar() -> None:
    """`--isolation` gives two shares of a cold compilation, in the text and in JSON."""
    given = {"threads": 1, "backends": ["eager"]}
    run = benchmark("mlp", more_names(isolation=True), rounds=3, options=given, small=True, fresh=True)
    isolated, inline = (next(one for one in run.results if one.name == name) for name in (ISOLATED, INLINE))
    assert isolated.first_call_s is not None
    assert inline.first_call_s is not None
    assert run.isolation_share == isolated.first_call_s / inline.first_call_s - 1
    facts = json.loads(run.to_json())
    assert facts["isolation_share"] == run.isolation_share
    assert facts["verification_share"] == run.verification_share
    assert "worker processes add " in benchmark_text(run)


@pytest.mark.parametrize(
    ("isolated_s", "verify_s", "lines"),
    [
        (
            4.2,
            0.42,
            [
                "worker processes add 5.0% (met: at most 10%) to a cold compilation",
                "verification takes 10.0% (met: at most 15%) of a cold compilation",
            ],
        ),
        (
            5.0,
            1.0,
            [
                "worker processes add 25.0% (missed: at most 10%) to a cold compilation",
                "verification takes 20.0% (missed: at most 15%) of a cold compilation",
            ],
        ),
        (5.0, None, ["worker processes add 25.0% (missed: at most 10%) to a cold compilation"]),
        (None, None, []),
    ],
)
def test_shares_of_a_cold_compilation(
    isolated_s: float | None, verify_s: float | None, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its bar; what was not measured is not reported."""
    results = (
        Result(name=ISOLATED, first_call_s=isolated_s, verify_s=verify_s),
        Result(name=INLINE, first_call_s=4.0),
    )
    outcome = Race(results, (), 1)
    monkeypatch.setattr("hub.bench.whole.race", lambda *_: outcome)
    text = benchmark_text(benchmark("mlp", ["eager"], rounds=3))
    assert [line for line in text.splitlines() if "cold compilation" in line] == lines


# --- Contenders by name -----------------------------------------------------------------------------------------------


def test_without_names_eager_and_every_available_peer_compete() -> None:
    """The hub comes first, the hub restricted to one backend only when asked."""
    names = [one.name for one in contenders()]
    assert names[:2] == ["hub", "eager"]
    assert {"inductor", "onnxruntime", "openvino"} <= set(names)
    assert not [name for name in names if name.startswith("hub:")]


def test_the_hub_may_be_restricted_to_one_backend() -> None:
    """`hub:NAME` is the hub with one backend, and the hub itself always runs."""
    assert [one.name for one in contenders(["hub:openvino", "hub:openvino"])] == ["hub", "hub:openvino"]


def test_an_unknown_contender_gives_the_nearest() -> None:
    """A misspelt contender is an error before anything is timed."""
    with pytest.raises(HubError, match="no contender is named 'indctor'; did you mean 'inductor'"):
        contenders(["indctor"])


def test_restriction_reaches_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """`hub:NAME` replaces `backends` and drops `exclude`, which might contradict it."""
    seen: list[object] = []
    monkeypatch.setattr(contenders_module, "compiled_by_hub", lambda module, given, **_: seen.append(given) or module)
    whole, alone = contenders(["hub:openvino"])
    contenders_module.build(alone, lambda: 1, (), {"threads": 2, "exclude": ("openvino",)})
    contenders_module.build(whole, lambda: 1, (), {"threads": 2})
    assert seen == [{"threads": 2, "backends": ("openvino",), "exclude": ()}, {"threads": 2}]


# --- Statistics -------------------------------------------------------------------------------------------------------


def timed(name: str, *blocks_s: float) -> Result:
    return Result(name=name, blocks_s=blocks_s, call_s=Interval.of(blocks_s))


def test_ratios_are_taken_round_by_round() -> None:
    """A slow phase of the machine, here the third round, hits both and leaves the ratio alone."""
    fast, slow = timed("eager", 1.0, 1.0, 4.0, 1.0), timed("hub", 2.0, 2.0, 8.0, 2.0)
    found = ranked([slow, fast])
    assert [one.name for one in found] == ["eager", "hub"]
    assert found[1].to_best == Interval(median=2.0, low=2.0, high=2.0)


def test_failures_are_ranked_last() -> None:
    """They stay in the results."""
    found = ranked([Result(name="tvm", failure="no"), timed("hub", 1.0)])
    assert [one.name for one in found] == ["hub", "tvm"]


def test_the_hub_is_compared_with_the_best_that_is_not_the_hub() -> None:
    """A restricted hub does not count as another."""
    results = [
        timed("hub", 1.0, 1.0),
        timed("hub:openvino", 0.5, 0.5),
        timed("openvino", 0.8, 0.8),
        timed("eager", 2.0, 2.0),
    ]
    interval, name = against_others(results)
    assert name == "openvino"
    assert interval == Interval(median=1.25, low=1.25, high=1.25)
    assert against_others([timed("hub", 1.0)]) == (None, "")


# --- Closeness --------------------------------------------------------------------------------------------------------


def test_difference_is_the_largest_over_all_outputs() -> None:
    """Relative to the largest value of the output that it is in."""
    reference = {"a": torch.tensor([1.0, -4.0]), "b": (torch.tensor([100.0]),)}
    found = {"a": torch.tensor([1.0, -3.0]), "b": (torch.tensor([98.0]),)}
    apart = difference(found, reference)
    assert (apart.absolute, apart.relative) == (2.0, 0.25)


@pytest.mark.parametrize(
    ("found", "reference", "message"),
    [
        ((torch.ones(2), torch.ones(2)), torch.ones(2), "2 outputs instead of 1"),
        (torch.ones(3), torch.ones(2), r"shape \[3\] instead of \[2\]"),
        (torch.tensor([float("nan")]), torch.ones(1), "NaN or infinity"),
    ],
)
def test_results_that_cannot_be_compared_are_wrong(found: object, reference: object, message: str) -> None:
    """Number, shape and finiteness have to agree."""
    with pytest.raises(AccuracyError, match=message):
        difference(found, reference)


def test_equal_infinities_are_no_difference() -> None:
    """Masks may hold minus infinity."""
    values = torch.tensor([float("-inf"), 1.0])
    assert difference(values, values.clone()).absolute == 0.0


def test_results_of_other_libraries_are_read() -> None:
    """Arrays count as tensors, and so do mappings that PyTorch does not know."""
    from types import MappingProxyType

    assert [value.tolist() for value in tensors_in(MappingProxyType({"a": torch.ones(1).numpy()}))] == [[1.0]]


def test_a_missing_folder_is_noticed_before_the_race(tmp_path: Path) -> None:
    """Minutes of timing are not thrown away for a wrong path."""
    from hub.cli.bench import CommonFlags, ZooFlags, print_bench

    with pytest.raises(HubError, match="there is no folder"):
        print_bench(
            CommonFlags(None, 3, {}), ZooFlags("mlp", None, None, None, str(tmp_path / "missing" / "out.json"), None)
        )


def test_a_folder_named_like_the_package_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own `hub` folder in the working directory is not imported in place of this package."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "__init__.py").write_text("raise ImportError('the wrong hub')")
    monkeypatch.chdir(tmp_path)
    found = race([Contender("eager")], Task("mlp", threads=1, rounds=3, block_s=0.005, small=True), Progress())
    assert found.results[0].failure == ""
