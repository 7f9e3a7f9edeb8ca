"""Findings and scores: counted by check, readable, and JSON."""

from __future__ import annotations

import json

from hub.testing.conformance.finding import CHECKS, failed, judged, not_applicable, passed, trouble
from hub.testing.conformance.score import Score, score_lines

SCORE = Score(
    "toy",
    "hub-toy 1.0",
    "0.1.0",
    (
        passed("support", "aten.relu.default"),
        failed("numerics", "aten.relu.default", "output 0: off by one"),
        not_applicable("saving", "executables", "not claimed"),
        passed("overhead", "a tiny call", "3.00 us a call"),
    ),
)


def test_problems_become_one_finding() -> None:
    """None is a pass; of many, the first ones are shown and the rest counted."""
    assert judged("support", "x", []).verdict == "passed"
    assert judged("support", "x", ["a", "b"]).reason == "a; b"
    assert judged("support", "x", "abcde").reason == "a; b; c; and 2 more"


def test_an_exception_is_one_line() -> None:
    """Its kind and the first line of its text, even where a plugin's exception cannot be printed."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert trouble(ValueError("one\ntwo")) == "ValueError: one"
    assert trouble(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert trouble(Mute()) == "Mute: its text is unavailable"


def test_text_has_a_table_the_failures_and_the_share() -> None:
    """What failed stands with its subject and reason, figures below, the score last."""
    text = score_lines(SCORE)
    assert text[0].split() == ["check", "passed", "failed", "n/a", "what", "it", "promises"]
    assert "  numerics, aten.relu.default: output 0: off by one" in text
    assert "  overhead, a tiny call: 3.00 us a call" in text
    assert text[-1] == "toy (hub-toy 1.0): 2 of 3 findings passed (66.6 %), 1 not applicable"


def test_a_share_is_not_rounded_up() -> None:
    """100 % is for those who failed nothing."""
    many = (*(passed("support", str(index)) for index in range(4999)), failed("support", "last", "wrong"))
    assert "(99.9 %)" in score_lines(Score("toy", "", "", many))[-1]


def test_json_has_counts_and_findings() -> None:
    """A program reads the same as a person."""
    facts = json.loads(SCORE.to_json())
    assert not facts["is_passed"]
    assert facts["total"] == {"passed": 2, "failed": 1, "not_applicable": 1}
    assert facts["checks"]["numerics"] == {"passed": 0, "failed": 1, "not_applicable": 0}
    assert facts["findings"][1] == {
        "check": "numerics",
        "subject": "aten.relu.default",
        "verdict": "failed",
        "reason": "output 0: off by one",
    }


def test_nothing_applicable_is_no_pass() -> None:
    """A backend of which nothing could be said did not pass."""
    assert not Score("toy", "", "", (not_applicable("saving", "x", "y"),)).is_passed


def test_checks_are_documented() -> None:
    """The how-to has a row for each check."""
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "how-to" / "check-a-plugin.md").read_text(encoding="utf-8")
    assert [name for name in CHECKS if f"| `{name}` |" not in page] == []
