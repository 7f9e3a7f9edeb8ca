"""Seals: no byte of a sealed text can change unseen."""

from __future__ import annotations

import json

import pytest

from hub.cache.seals import sealed, unsealed

FACTS = {"key": "k", "files": {"a/b.so": "12", "é": ""}, "number": 1.5, "none": None}


def test_what_was_sealed_comes_back_equal() -> None:
    """The text is JSON in ASCII, for people too."""
    text = sealed(FACTS)
    assert unsealed(text.encode("ascii")) == FACTS
    assert json.loads(text)["sealed"] == FACTS


def test_every_flip_of_every_bit_is_noticed() -> None:
    """Also one in a space, in the digest, or in the last newline."""
    data = sealed(FACTS).encode()
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            assert unsealed(bytes(flipped)) is None, (position, bit)


def test_every_shorter_and_every_longer_text_is_noticed() -> None:
    """What a full disk or a killed process leaves."""
    data = sealed(FACTS).encode()
    assert all(unsealed(data[:size]) is None for size in range(len(data)))
    assert all(unsealed(data + tail) is None for tail in (b" ", b"\n", data))


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", sealed({}).encode().replace(b"{}", b"[]"), b"[" * 100_000])
def test_what_is_no_sealed_text_gives_nothing(data: bytes) -> None:
    """Whatever it is, nothing is raised."""
    assert unsealed(data) is None
