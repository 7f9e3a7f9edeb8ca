"""Plain technical English: the worst of what readers once had to decode does not come back.

Docstrings follow PEP 257; words of a dialect have words of the field in their place.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.sources import ROOT, SOURCES

OPENINGS = ("Gives", "Tells", "Says", "Has", "Returns", "Makes", "Finds", "Lends")
"""A function's docstring begins with an imperative: "Return ...". Test functions state what is true instead."""
WORDS: Mapping[str, str] = {
    "a hair": "slightly",
    "hears of": "is called with",
    "leave to": "permission to",
    "mends": "fixes",
    "nobody": "no backend, no caller, no test",
    "not to be had": "unavailable",
    "put away": "disabled",
    "whoever": "the caller, the plugin",
}
"""Banned words, with what to say instead."""
NAMED = re.compile(r"`[^`]*`|https?://\S+")
"""Names of code are no prose."""
MODULES = {**SOURCES, **{f"benchmarks.{path.stem}": path for path in (ROOT / "benchmarks").glob("*.py")}}
PAGES = sorted(
    {ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("plugin*/**/README.md")}
)


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_of_functions_begin_with_an_imperative(name: str) -> None:
    """No function's docstring begins with a verb in the third person that was once common."""
    functions = (node for node in ast.walk(ast.parse(MODULES[name].read_text())) if isinstance(node, ast.FunctionDef))
    first = {node.name: (ast.get_docstring(node) or "").split(maxsplit=1)[:1] for node in functions}
    assert [function for function, words in first.items() if words and words[0] in OPENINGS] == []


@pytest.mark.parametrize("name", MODULES)
def test_comments_and_docstrings_have_no_banned_words(name: str) -> None:
    """Strings of the program count, too: users read them."""
    assert banned(" ".join(prose_of(MODULES[name]))) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_have_no_banned_words(page: Path) -> None:
    """Of the documentation, and of READMEs."""
    assert banned(re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)) == []


def test_banned_words_are_found() -> None:
    """In any case, across lines, and not inside of others or of names of code."""
    assert banned("It is Put\naway.") == ["put away: disabled"]
    assert banned("computer `nobody` amends") == []


def banned(text: str) -> list[str]:
    """Return the banned words in a text, with what to say instead."""
    plain = " ".join(NAMED.sub("", text).split())
    return [f"{word}: {better}" for word, better in WORDS.items() if re.search(rf"\b{word}\b", plain, re.IGNORECASE)]


def prose_of(path: Path) -> Iterator[str]:
    """Yield the comments and string literals of a module."""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(io.StringIO(file.read()).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.string
