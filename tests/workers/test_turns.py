"""Turns: the most important waiting request is next, and none waits forever."""

from __future__ import annotations

import threading

import pytest

from hub.workers.turns import Turns


def test_the_lowest_rank_is_next() -> None:
    """Whole plans go before pieces, and those that may win before others, regardless of the order of requests."""
    turns = Turns(1)
    done: list[tuple[bool, int]] = []

    def work(rank: tuple[bool, int]) -> None:
        with turns.turn(rank, 60.0):
            done.append(rank)

    ranks = [(True, 0), (False, 2), (False, 0), (True, 1), (False, 1)]
    with turns.turn((True, 9), 60.0):
        threads = [threading.Thread(target=work, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        while len(turns._waiting) < len(ranks):
            pass
    for thread in threads:
        thread.join()
    assert done == sorted(ranks)


def test_no_more_work_at_once_than_there_are_turns() -> None:
    """Two of ten at once, and each comes to its turn."""
    turns, lock = Turns(2), threading.Lock()
    at_once: list[int] = [0]
    most: list[int] = []

    def work(number: int) -> None:
        with turns.turn((False, number), 60.0):
            with lock:
                at_once[0] += 1
                most.append(at_once[0])
            with lock:
                at_once[0] -= 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 10
    assert max(most) <= 2


@pytest.mark.parametrize("rank", [(False, 0), (True, 5)])
def test_whoever_hangs_stops_nobody(rank: tuple[bool, int]) -> None:
    """A turn that does not end is not waited for longer than patience lasts, and takes no other's."""
    turns = Turns(1)
    with turns.turn((False, 1), 60.0):
        with turns.turn(rank, 0.05):
            assert turns._free == 0
        assert turns._free == 0
    assert turns._free == 1
    with turns.turn(rank, 60.0):
        assert turns._free == 0
