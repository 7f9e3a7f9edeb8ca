"""Values that a call computes from its sizes."""

from __future__ import annotations

from typing import Any

import pytest

from plugin_disc.sized import Sized


@pytest.mark.parametrize("symbols", [(), ("s0",), ("s0", "s1")])
def test_the_lines_of_a_call_are_python(symbols: tuple[str, ...]) -> None:
    """Without a symbol, too: each symbolic size of a cluster may have turned out to have one possible value."""
    sized = Sized(symbols)
    sized.texts[f"sum(({' '.join(f'{symbol},' for symbol in symbols)}))"] = "total"
    body = "\n    ".join([f"def call({', '.join(symbols)}):", *sized.look_up(), "return total"])
    names: dict[str, Any] = {"sized": {}}
    exec(sized.definition() + body, names)
    values = tuple(range(3, 3 + len(symbols)))
    assert [names["call"](*values) for _ in range(2)] == [sum(values)] * 2
    assert names["sized"] == {values: (*values, sum(values))}
