"""Large results reuse memory of calls that have ended, and only memory without another owner."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import cast

import pytest
import torch

from hub.plugin.backend import CompileSettings
from hub.testing.single import whole_cluster
from plugin_disc import kept
from plugin_disc.backend import create
from plugin_disc.kept import Kept, kept_bytes
from plugin_disc.pages import LARGE
from plugin_disc.settings import Settings
from tests.plugin_disc.programs import Wrapped

ROWS = LARGE // 4 // 1024
LIMIT = 8 * LARGE

Call = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def nothing_is_kept_in_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ignore executables of other tests, and check that those of this one are gone at its end."""
    monkeypatch.setattr(kept, "_KEEPERS", weakref.WeakValueDictionary())
    yield
    assert kept_bytes() == 0


def given() -> torch.Tensor:
    return torch.randn(ROWS, 1024)


def doubling(most_bytes: int = 1 << 30) -> Call:
    cluster, _ = whole_cluster(Wrapped(lambda x: x * 2), (given(),))
    return create(Settings(kept_mb=most_bytes >> 20)).compile(cluster, CompileSettings(threads=1))  # pyright: ignore


def piece(keeper: Kept, name: str = "o0") -> torch.Tensor:
    return keeper.tensor(name, (LARGE // 4,), (1,), torch.float32, LARGE)


# --- Workspaces -------------------------------------------------------------------------------------------------------


def test_workspaces_of_changing_sizes_share_the_largest_piece() -> None:
    """Fresh memory for each size would be cleared by the kernel in each call."""
    keeper = Kept(LIMIT)
    places = set[int]()
    for bytes_ in (3 * LARGE, LARGE, 2 * LARGE, 100):
        room = keeper.workspace(bytes_)
        assert room.nbytes >= bytes_
        places.add(room.data_ptr())
        del room
    assert len(places) == 1
    assert kept_bytes() == 3 * LARGE
    keeper.workspace(4 * LARGE)
    assert kept_bytes() == 4 * LARGE  # the smaller piece is gone


def test_a_workspace_that_is_hardly_used_is_given_up() -> None:
    """A rare peak does not take the memory that results could have for good."""
    keeper = Kept(LIMIT)
    keeper.workspace(6 * LARGE)
    for _ in range(kept.MAX_OVERSIZED - 1):
        keeper.workspace(LARGE)
    assert kept_bytes() == 6 * LARGE
    keeper.workspace(2 * LARGE)  # this call uses enough of it
    for _ in range(kept.MAX_OVERSIZED):
        assert kept_bytes() == 6 * LARGE
        keeper.workspace(LARGE)
    assert kept_bytes() == LARGE


@pytest.mark.parametrize("rows", [6, ROWS])
def test_workspaces_lie_on_the_cpu_whatever_the_default_device(rows: int) -> None:
    """The user's default is for tensors that the user makes."""
    cluster, _ = whole_cluster(
        Wrapped(lambda x: ((y := x.softmax(-1)) @ y.t()).softmax(-1)), (torch.randn(7, 1024),), dynamic=True
    )
    executable = create(Settings()).compile(cluster, CompileSettings(threads=1))
    x = torch.randn(rows, 1024)
    inputs = [x if hasattr(spec, "shape") else rows for spec in cluster.inputs]
    wanted = cluster.module(*inputs)[0]
    with torch.device("meta"):
        (result,) = executable(*inputs)
    torch.testing.assert_close(result, wanted)
    del executable, result


def test_two_calls_at_once_have_workspaces_of_their_own() -> None:
    """A piece in use is not given out again, and is kept for later."""
    keeper = Kept(LIMIT)
    first, second = keeper.workspace(LARGE), keeper.workspace(LARGE)
    assert first.data_ptr() != second.data_ptr()
    places = {first.data_ptr(), second.data_ptr()}
    del first, second
    again = [keeper.workspace(LARGE) for _ in range(2)]
    assert {room.data_ptr() for room in again} == places


def test_a_workspace_beyond_the_limit_is_not_kept() -> None:
    """The call has it, and nobody else."""
    keeper = Kept(LARGE)
    assert keeper.workspace(2 * LARGE).nbytes == 2 * LARGE
    assert kept_bytes() == 0


# --- What is given out ------------------------------------------------------------------------------------------------


def test_a_result_that_is_gone_lends_its_memory_to_the_next() -> None:
    """The second call writes where the first one did."""
    call, x = doubling(), given()
    (first,) = call(x)
    place = first.data_ptr()
    del first
    (second,) = call(x)
    assert second.data_ptr() == place
    assert torch.equal(second, x * 2)


HOLDERS: dict[str, Callable[[torch.Tensor], object]] = {
    "itself": lambda result: result,
    "a view": lambda result: result[3:5],
    "an array": lambda result: result.numpy(),
    "its storage": lambda result: result.untyped_storage(),
    "a capsule": lambda result: result.__dlpack__(),
    "a detached tensor": lambda result: result.detach(),
    "what autograd saved": lambda result: torch.randn(ROWS, 1024, requires_grad=True) * result,
    "a parameter": lambda result: torch.nn.Parameter(result),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_has_is_never_written_to(holder: str) -> None:
    """A result that is still referenced, in any form, keeps its values after later calls."""
    call, x = doubling(), given()
    (result,) = call(x)
    wanted, place = result.clone(), result.data_ptr()
    held = HOLDERS[holder](result)
    del result
    later = [call(given())[0] for _ in range(3)]
    assert place not in {each.data_ptr() for each in later}
    if holder == "itself":
        assert torch.equal(held, wanted)  # pyright: ignore[reportArgumentType]
    del held


def test_results_of_one_call_have_memory_of_their_own() -> None:
    """Two results of one size, and those of three calls, are six pieces of memory."""
    cluster, _ = whole_cluster(Wrapped(lambda x: (x * 2, x * 3)), (given(),))
    executable, x = create().compile(cluster, CompileSettings(threads=1)), given()
    results = [result for _ in range(3) for result in executable(x)]
    assert len({result.data_ptr() for result in results}) == 6
    for two, three in zip(results[::2], results[1::2], strict=True):
        assert torch.equal(two, x * 2) and torch.equal(three, x * 3)


def test_a_call_on_its_own_result_is_right() -> None:
    """The memory of an input is not the result's."""
    call, wanted = doubling(), given()
    x = wanted.clone()
    for _ in range(5):
        (x,) = call(x)
        wanted = wanted * 2
    assert torch.equal(x, wanted)


def test_threads_at_once_get_their_own_memory() -> None:
    """Each of four threads has its own values, call after call."""
    call, wrong = doubling(), list[int]()

    def work(number: int) -> None:
        x = torch.full((ROWS, 1024), float(number))
        for _ in range(20):
            if not bool((call(x)[0] == 2.0 * number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_results_of_symbolic_sizes_are_lent_too() -> None:
    """A size that comes again gets the memory of its last call; others give up theirs if the limit is reached."""
    cluster, _ = whole_cluster(Wrapped(lambda x: x * 2), (torch.randn(4, 3),), dynamic=True)
    settings = Settings(kept_mb=2 * LARGE >> 20)
    call = cast("Call", create(settings).compile(cluster, CompileSettings(threads=1)))
    for rows in (ROWS, ROWS + 1, ROWS + 2, ROWS):
        x, places = torch.randn(rows, 1024), set[int]()
        for _ in range(3):
            (result,) = call(x)
            places.add(result.data_ptr())
            assert torch.equal(result, x * 2)
            del result
        assert len(places) == 1
        assert kept_bytes() <= 2 * LARGE


def test_what_can_never_be_kept_takes_no_room() -> None:
    """A result over the limit leaves those that are kept where they are, and nothing of it is remembered."""
    keeper = Kept(2 * LARGE)
    place = piece(keeper).data_ptr()
    for extra in range(3):
        keeper.tensor("o0", (LARGE + extra,), (1,), torch.float32, 4 * (LARGE + extra))
    assert [*keeper._pieces] == [("o0", LARGE)]
    assert piece(keeper).data_ptr() == place


# --- What is not kept -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda s: s.resize_(0), lambda s: s.resize_(2 * LARGE), lambda s: s.share_memory_()])
def test_memory_that_changed_hands_is_let_go(change: Callable[[torch.UntypedStorage], object]) -> None:
    """A storage of another size, or one that other processes see, is never written to."""
    keeper = Kept(LIMIT)
    first = piece(keeper)
    change(first.untyped_storage())
    del first
    second = piece(keeper)
    assert (second.untyped_storage().nbytes(), second.is_shared()) == (LARGE, False)
    assert kept_bytes() == LARGE
    del second


def test_no_more_is_kept_than_is_allowed() -> None:
    """All executables together stay within the limit; what is beyond it is given back as ever."""
    one, other = Kept(LARGE), Kept(LARGE)
    first = piece(one)
    second, third = piece(one, "o1"), piece(other)
    assert kept_bytes() == LARGE
    del first, second, third, one
    assert kept_bytes() == 0
    piece(other)
    assert kept_bytes() == LARGE


def test_nothing_is_kept_where_the_user_says_so() -> None:
    """`kept_mb` of 0 leaves memory to PyTorch."""
    call = doubling(0)
    call(given())
    assert kept_bytes() == 0


def test_an_executable_that_is_gone_keeps_nothing() -> None:
    """Its memory goes with it."""
    call = doubling()
    call(given())
    assert kept_bytes() > 0
    del call
    assert kept_bytes() == 0
