"""Reports: a plan printed whole, so that a reader can follow the decision without the code."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from hub.plan import Plan, Search
from hub.report.numbers import count, duration, names_text, ratio, spread
from hub.report.picture import picture_text
from hub.report.tables import plan_table
from hub.report.text import operators_text, plan_text, search_text

Compare = Callable[[str, str], None]


def shown(plan: Plan, *, colour: bool) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=colour, color_system="standard" if colour else None)
    console.print(plan_table(plan))
    return console.file.getvalue().rstrip()  # pyright: ignore


def test_a_whole_plan_prints_its_evidence(same_as_golden: Compare, whole: Plan) -> None:
    """The report holds the decision, the contenders with intervals, and what the others bid."""
    same_as_golden("plan_whole.txt", plan_text(whole))


def test_a_mixed_plan_prints_why_each_cluster_went_where(same_as_golden: Compare, mixed: Plan) -> None:
    """Equal refusals are listed once, with the clusters they concern."""
    same_as_golden("plan_mixed.txt", plan_text(mixed))


def test_the_terminal_shows_the_same_with_a_picture(same_as_golden: Compare, mixed: Plan) -> None:
    """The tables in the terminal come from the text report."""
    text = shown(mixed, colour=False)
    assert picture_text(mixed).splitlines()[1] in text
    for part in ("plan of graph3 (forward)", "aten.sort.default: not in the operator table", "failed at compile"):
        assert part in text


def test_many_clusters_are_not_pictured(mixed: Plan) -> None:
    """A picture that fills the screen says less than the table."""
    assert "┌" not in shown(mixed.model_copy(update={"clusters": mixed.clusters * 3}), colour=False)


def test_backends_have_colours_in_the_terminal_only(mixed: Plan) -> None:
    """Without a terminal there are no escape sequences."""
    assert "\x1b[" in shown(mixed, colour=True)
    assert "\x1b[" not in shown(mixed, colour=False)
    assert "\x1b[" not in str(mixed)


def test_the_picture_breaks_at_the_right_edge(same_as_golden: Compare, mixed: Plan) -> None:
    """Boxes go left to right, rows top to bottom."""
    text = picture_text(mixed, width=60)
    same_as_golden("picture_mixed.txt", text)
    assert max(map(len, text.splitlines())) <= 60


def test_str_of_a_plan_is_its_report(whole: Plan) -> None:
    """`print(plan)` is enough."""
    assert str(whole) == plan_text(whole)


def test_a_plan_says_how_sure_its_assignment_is() -> None:
    """The method is named, with the gap that is left, or that none is."""
    search = Search(regions=1, structures=1, candidates=4, measured=1)
    assert search_text(search) == "1 region of 1 structure, 1 of 4 prices measured"
    assert search_text(search.model_copy(update={"method": "milp", "gap": 0.0123})).endswith(
        "; assigned by binary program, within 1.2% of the cheapest"
    )


def test_a_plan_that_knows_nothing_prints_too() -> None:
    """Missing numbers are dashes, missing sections are left out."""
    text = plan_text(Plan(graph="g", graph_digest="", clusters=(), threads=1))
    assert "0 clusters on nothing" in text
    assert "predicted -, measured -" in text
    assert "contenders" not in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0.00 us"),
        (2.5e-6, "2.50 us"),
        (0.0009999, "1.00 ms"),
        (0.0361, "36.1 ms"),
        (0.45, "450 ms"),
        (75.0, "75.0 s"),
    ],
)
def test_durations_have_three_digits(seconds: float | None, text: str) -> None:
    """The unit fits the size."""
    assert duration(seconds) == text


def test_numbers_read_well() -> None:
    """Intervals are in percent, ratios have an x, one node is no nodes."""
    assert spread(0.0361, 0.0004) == "36.1 ms +- 1.1 %"
    assert spread(0.0361, 0.0) == "36.1 ms"
    assert [ratio(2.0, 1.0), ratio(1.0, 0.0)] == ["2.00x", "-"]
    assert [count(1, "node"), count(2, "node")] == ["1 node", "2 nodes"]


@pytest.mark.parametrize(
    ("operators", "text"),
    [
        ((), "-"),
        (("aten.relu.default",), "relu"),
        (("aten.relu.default",) * 3, "relu x3"),
        (("aten.add.Tensor", "aten.mul.Tensor"), "add.Tensor ... mul.Tensor"),
    ],
)
def test_operators_are_told_in_short(operators: tuple[str, ...], text: str) -> None:
    """One operator by name, equal ones by number, others by the first and the last."""
    assert operators_text(operators) == text


def test_long_lists_of_names_are_cut() -> None:
    """The first four and how many more."""
    assert names_text([f"c{index}" for index in range(9)]) == "c0, c1, c2, c3 and 5 more"
    assert names_text([f"c{index}" for index in range(5)]) == "c0, c1, c2, c3, c4"
