"""Large results ask for large pages, within their own memory only."""

from __future__ import annotations

import pytest
import torch

from plugin_disc import pages
from plugin_disc.pages import LARGE, PAGE, ask_for_large_pages


def asked_for(tensor: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the ranges of memory, start and length, for which pages are requested."""
    asked: list[tuple[int, int]] = []

    def advise(address: int, length: int, _advice: int) -> int:
        asked.append((address, length))
        return 0

    monkeypatch.setattr(pages, "_advise", lambda: advise)
    ask_for_large_pages(tensor)
    return asked


def test_whole_pages_inside_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the page in which a tensor begins nor that in which it ends belongs to it alone."""
    tensor = torch.empty(2 * LARGE, dtype=torch.uint8)[1:]
    ((begin, length),) = asked_for(tensor, monkeypatch)
    assert begin % PAGE == 0 == length % PAGE
    assert tensor.data_ptr() <= begin < begin + length <= tensor.data_ptr() + tensor.nbytes


def test_nothing_is_asked_for_less_than_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that has no whole page to itself is left alone."""
    assert asked_for(torch.empty(PAGE // 2, dtype=torch.uint8), monkeypatch) == []


def test_the_kernel_may_refuse() -> None:
    """Memory stays usable whatever the kernel answers."""
    tensor = torch.empty(2 * LARGE, dtype=torch.uint8)
    ask_for_large_pages(tensor)
    assert int(tensor.fill_(3).min()) == 3
