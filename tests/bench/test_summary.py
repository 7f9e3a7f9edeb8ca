"""The summary of many benchmarks: means, goals, ablation, tables and figures, from results that are made up."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from hub.bench.bars import bars
from hub.bench.machine import Machine
from hub.bench.markdown import goals_text, summary_text
from hub.bench.plot import score_figure, speedup_figure
from hub.bench.result import Benchmark, Interval, Result, against_others, ranked
from hub.bench.summary import Summary, best_fixed, is_library, label, summarize

MACHINE = Machine(
    cpu="a | processor", cores=2, memory_bytes=1, system="", python="3.11", libraries={"torch": "2.13"}, load=0.0
)


def result(name: str, ms: float, **facts: object) -> Result:
    blocks_s = (ms / 1e3, ms / 1e3)
    return Result.model_validate(
        {"name": name, "blocks_s": blocks_s, "call_s": Interval.of(blocks_s), "tolerance": -6, **facts}
    )


def run(model: str, batch: int, *results: Result) -> Benchmark:
    hub_to_others, best_other = against_others(results)
    return Benchmark(
        model=model,
        batch=batch,
        inputs=(),
        threads=2,
        rounds=2,
        block_s=0.2,
        command="",
        date="2026-11-21",
        machine=MACHINE,
        results=ranked(results),
        hub_to_others=hub_to_others,
        best_other=best_other,
    )


RUNS = (
    run(
        "bert",
        1,
        result("eager", 40.0),
        result("inductor", 20.0, first_call_s=10.0),
        result("openvino", 10.0),
        result("hub:openvino", 10.0),
        result("hub", 8.0, clusters=2, first_call_s=24.0, backends=["openvino", "inductor"], note="two clusters"),
        result("hub@tuned", 8.0, first_call_s=80.0),
        Result(name="hub@warm", first_call_s=6.0),
        result("hub-openvino", 16.0),
        Result(name="hub-inductor", same_as="hub"),
    ),
    run(
        "mamba",
        4,
        result("eager", 10.0),
        result("inductor", 5.0),
        Result(name="openvino", failure="cannot\nconvert", failure_kind="compile"),
        result("hub:openvino", 20.0),
        result("hub", 6.25, clusters=13),
    ),
)


@pytest.fixture(scope="module")
def summary() -> Summary:
    """Return two runs: in the second, the hub is slower than Inductor, and OpenVINO fails."""
    return summarize(RUNS)


def test_the_hub_is_compared_with_the_best_peer_of_each_model(summary: Summary) -> None:
    """Means are geometric, the hub's own contenders are no peers, and each run that is slower is named."""
    best = summary.comparisons[0]
    assert best.speeds == pytest.approx({"bert b1": 1.25, "mamba b4": 0.8})
    assert best.names == {"bert b1": "openvino", "mamba b4": "inductor"}
    assert best.geomean == pytest.approx(1.0)
    assert list(best.below) == ["mamba b4"]


def test_the_hub_is_compared_with_the_best_backend_alone(summary: Summary) -> None:
    """Backends through the hub are compared apart from libraries through their own APIs."""
    (alone,) = [one for one in summary.comparisons if one.against == "the best backend alone of each model"]
    assert alone.speeds == pytest.approx({"bert b1": 1.25, "mamba b4": 3.2})


def test_a_library_that_fails_runs_in_eager() -> None:
    """As its user would: OpenVINO is 4x and 1x as fast as eager, Inductor 2x and 2x, so both have the same mean."""
    assert best_fixed(RUNS, lambda name: name == "openvino") == "openvino"
    assert best_fixed(RUNS[1:], is_library) == "inductor"
    assert best_fixed(RUNS[:1], is_library) == "openvino"
    assert best_fixed((), is_library) == ""


def test_ablation_is_the_time_without_a_backend(summary: Summary) -> None:
    """A backend that the plan does not use costs nothing to leave out."""
    found = {one.backend: one.slowdowns for one in summary.ablations}
    assert found == {"openvino": {"bert b1": pytest.approx(2.0)}, "inductor": {"bert b1": pytest.approx(1.0)}}


def test_the_frozen_hub_has_goals_of_its_own() -> None:
    """Where `hub@frozen` was timed it is compared with the same peers, and where it was not nothing is said of it."""
    frozen = run("vit", 1, result("eager", 40.0), result("inductor", 10.0), result("hub", 11.0), result("hub@frozen", 8.0))
    found = [one for one in summarize([frozen]).comparisons if one.who == "hub@frozen" and one.speeds]
    assert [one.geomean for one in found] == pytest.approx([1.25, 1.25, 1.25, 5.0])
    goals = {one.text: one.is_met for one in bars(summarize([frozen]))}
    assert goals["hub@frozen: at least 0.97 x as fast as the best peer on every model"] is True
    assert goals["hub: at least 0.97 x as fast as the best peer on every model"] is False


def test_goals_say_what_was_found(summary: Summary) -> None:
    """Each is met, missed with the runs that miss it, or not measured."""
    found = {one.text: one for one in bars(summary)}
    hub, tuned, starts = [False, False, True, False], [True] * 4, [True, True, True, None, None]
    assert [one.is_met for one in found.values()] == [*hub, *tuned, *starts, False]
    assert found["the plan is there within Inductor's compile time and 15 s, in the median"].found == "+14.0 s"
    assert "mamba b4 0.8" in found["hub: at least 0.97 x as fast as the best peer on every model"].found
    assert found["at most 12 clusters"].found == "1 of 2; not mamba b4 13"
    assert {one.is_met for one in bars(summarize(RUNS[1:]))} == {False, None}


def test_scores_hold_failures_against_a_contender(summary: Summary) -> None:
    """OpenVINO: 4x on one model, a failure to compile on the other, which is forgiven at t = 3."""
    curve = next(one for one in summary.curves if one.name == "openvino")
    assert (curve.samples, curve.error_aware[-5], curve.error_aware[3]) == (2, pytest.approx(0.4**0.5), pytest.approx(2.0))


def test_the_summary_survives_json(summary: Summary) -> None:
    """What is written can be read back."""
    assert Summary.model_validate_json(summary.model_dump_json()) == summary


def test_the_page_has_a_table_for_each_question(summary: Summary) -> None:
    """Cells cannot break a table, failures are listed with their reason, and runs have one name everywhere."""
    page = summary_text(RUNS, summary)
    assert [line for line in page.splitlines() if line.startswith("#")][1:] == [
        *("## Goals", "## The hub's speed", "## Milliseconds a call", "## Without one backend"),
        *("## Seconds to the first result", "## GraphNet's error-aware score ES(t)", "## Failures"),
    ]
    assert "| bert b1 | 8.00 | 40.00 | 20.00 | 10.00 | 10.00 | 8.00 |" in page
    assert "- mamba b4, openvino: cannot\n" in page
    assert label(RUNS[1]) == "mamba b4"
    assert goals_text(summary)[0].startswith("missed: hub: at least 0.97")


def test_figures_are_well_formed_and_name_everything() -> None:
    """Each contender is in the legend, each point says what it is, and nothing in a name breaks the file."""
    speeds = {"bert <b1>": {"hub": 5.0, "inductor": 2.0}, "mamba b4": {"hub": 0.4}}
    dots = ElementTree.fromstring(speedup_figure(speeds, "hub", "Speed & more"))
    titles = [one.text for one in dots.iter("{http://www.w3.org/2000/svg}title")]
    assert {"bert <b1>, hub: 5.00x", "bert <b1>, inductor: 2.00x", "mamba b4, hub: 0.40x"} <= set(titles)
    lines = ElementTree.fromstring(score_figure({"hub": {"-10": 0.1, "5": 2.0}, "inductor": {"0": 1.0}}, "hub", "ES"))
    assert len(list(lines.iter("{http://www.w3.org/2000/svg}polyline"))) == 2


def test_figures_of_nothing_are_figures_too() -> None:
    """A run in which everybody failed still gets its page."""
    for figure in (speedup_figure({}, "hub", "Speed"), score_figure({}, "hub", "ES")):
        assert ElementTree.fromstring(figure).tag.endswith("svg")
