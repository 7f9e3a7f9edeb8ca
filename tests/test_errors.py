"""Texts of errors, refusals and events: complete for people, and never as long as a plugin likes."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from hub.errors import LONGEST_TEXT, CompileError, PluginError, shortened, text_of
from hub.plan import Bid, Event
from hub.plugin.table import refused

LONG = "begin" + "x" * 1_000_000 + "end"


def test_usual_texts_stay_whole() -> None:
    """Only text that is longer than any message should be loses its middle, and says how much that was."""
    assert shortened("x" * LONGEST_TEXT) == "x" * LONGEST_TEXT
    text = shortened(LONG)
    assert len(text) <= LONGEST_TEXT
    assert text.startswith("begin")
    assert text.endswith("end")
    left = text.count("x")
    assert f"[... {1_000_000 - left} characters ...]" in text


TEXTS: dict[str, Callable[[str], str]] = {
    "an exception's": lambda text: text_of(ValueError(text)),
    "an error's message": lambda text: CompileError(text).message,
    "an error's hint": lambda text: str(CompileError("short", hint=text)),
    "an error's node": lambda text: str(CompileError("short", node=text)),
    "a refusal's": lambda text: refused(text).reason,
    "an event's": lambda text: Event(kind="failed", stage="compile", message=text).message,
    "a bid's": lambda text: Bid(backend="b", refusal=text).refusal,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_long_texts_lose_their_middle(kind: str) -> None:
    """Any long text of a plugin is cut where it first becomes the hub's."""
    text = TEXTS[kind](LONG)
    assert len(text) < LONGEST_TEXT + 100
    assert "begin" in text
    assert "end" in text


def test_errors_that_grow_later_are_short_where_they_arrive() -> None:
    """An error is also cut in the process that reads it."""
    error = PluginError("short")
    error.message = LONG
    assert len(pickle.loads(pickle.dumps(error)).message) <= LONGEST_TEXT
