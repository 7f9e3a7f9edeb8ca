"""Texts of errors, refusals and events: complete for people, and never as long as a plugin likes."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable

import pytest

import hub.errors
from hub.errors import LONGEST_TEXT, CompileError, HubError, PluginError, shortened, text_of, words_of
from hub.plan import Bid, Event
from hub.plugin.table import refused
from tests.sources import SOURCES

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


ERRORS = [kind for kind in vars(hub.errors).values() if isinstance(kind, type) and issubclass(kind, HubError)]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_says_what_to_do(kind: type[HubError]) -> None:
    """By a hint of its own class, if it has none of its own; Python's traceback shows it, and reports leave it out."""
    assert "GENERAL_HINT" in vars(kind)
    error = kind("it failed")
    assert error.hint == kind.GENERAL_HINT
    assert str(error) == "it failed"
    assert "".join(traceback.format_exception(error)).endswith(f"it failed\n  hint: {kind.GENERAL_HINT}\n")


def test_a_hint_of_its_own_comes_first() -> None:
    """It is in the text, once, also in the process that reads the error."""
    error = pickle.loads(pickle.dumps(CompileError("it failed", backend="b", hint="do this")))
    assert (error.hint, error.summary) == ("do this", "it failed [backend 'b']")
    assert "".join(traceback.format_exception(error)).endswith("it failed [backend 'b']\n  hint: do this\n")


def test_every_error_that_is_raised_by_name_is_a_leaf_of_the_tree() -> None:
    """The bare HubError has no cause and no hint that fits."""
    assert [path for path in SOURCES.values() if "raise HubError(" in path.read_text(encoding="utf-8")] == []


def test_messages_about_files_name_the_path_once() -> None:
    """An OSError's own text has its number and path in it."""
    assert words_of(FileNotFoundError(2, "No such file or directory", "/x")) == "No such file or directory"
    assert words_of(OSError("no number")) == "no number"
    assert words_of(ValueError("damaged")) == "damaged"
