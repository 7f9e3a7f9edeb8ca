"""Calls that bypass Dynamo do what its own code does around the graph: any sizes, caches, inputs that are written to."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.frontend.direct import general
from hub.frontend.direct import program as program_module
from hub.frontend.direct.compile import program_of
from hub.frontend.direct.trial import Pause
from tests.direct.answers import assert_same

OPTIONS = {"tune": "off", "start": "wait", "backends": ["onnxruntime"]}


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


def n_direct(compiled: Any, call: Callable[[], Any]) -> int:
    """Return how many calls bypassed Dynamo while `call` ran."""
    program = program_of(compiled)
    before = program._n_uses
    call()
    return program._n_uses - before


def ready(compiled: Any, *calls: Callable[[], Any], times: int = 4) -> None:
    """Make the calls until their programs are known."""
    for _ in range(times):
        for call in calls:
            program_of(compiled)._pauses = {False: Pause(), True: Pause()}
            call()


class Scores(nn.Module):
    """A model for any batch and length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores, one row per token."""
        return self.layer(self.embed(ids)) @ self.embed.weight.T


def ids(batch: int, length: int) -> torch.Tensor:
    """Return tokens of a size, the same ones each time."""
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(batch * 1000 + length))


def test_sizes_never_seen_before_go_without_dynamo() -> None:
    model = Scores().eval()
    compiled = hub.compile(model, options=OPTIONS)
    for size in ((3, 7), (4, 9), (5, 11), (6, 13)):
        compiled(ids(*size))
    sizes = [(batch, length) for batch in (2, 7, 16) for length in (3, 30, 64)]

    def call() -> None:
        for size in sizes:
            torch.testing.assert_close(compiled(ids(*size)), model(ids(*size)), rtol=1e-4, atol=1e-4)

    assert n_direct(compiled, call) == len(sizes)
    for size in ((1, 9), (5, 1), (1, 1), (0, 4)):  # sizes that Dynamo tells apart
        torch.testing.assert_close(compiled(ids(*size)), model(ids(*size)), rtol=1e-4, atol=1e-4)


def test_a_form_that_comes_again_and_again_gets_an_entry() -> None:
    model = Scores().eval()
    compiled = hub.compile(model, options=OPTIONS)
    for size in ((3, 7), (4, 9), (5, 11), (6, 13)):
        compiled(ids(*size))
    before = len(program_of(compiled)._armed.entries)
    for _ in range(3 * program_module.SAMPLE):
        assert_same(compiled(ids(8, 20)), compiled(ids(8, 20)), "the same call")
    assert len(program_of(compiled)._armed.entries) == before + 1
    torch.testing.assert_close(compiled(ids(8, 20)), model(ids(8, 20)), rtol=1e-4, atol=1e-4)


def test_a_checker_that_cannot_be_made_leaves_calls_to_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError

    monkeypatch.setattr(general, "_only", fails)
    model = Scores().eval()
    compiled = hub.compile(model, options=OPTIONS)
    for size in ((3, 7), (4, 9), (5, 11), (6, 13), (6, 13)):
        torch.testing.assert_close(compiled(ids(*size)), model(ids(*size)), rtol=1e-4, atol=1e-4)
    assert program_of(compiled)._armed.general == ()


class Cache:
    """What a language model hands from call to call: tensors that grow, and a number."""

    def __init__(self) -> None:
        self.rows: torch.Tensor | None = None
        self.n_calls = 0
        self.names = {"last": ""}

    def update(self, row: torch.Tensor) -> torch.Tensor:
        """Add rows, and return all of them."""
        self.rows = row if self.rows is None else torch.cat([self.rows, row], dim=1)
        self.n_calls += 1
        self.names["last"] = f"call {self.n_calls > 1}"
        return self.rows


class Recurrent(nn.Module):
    """A model that writes to a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("state", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        """Return a result and the cache."""
        return self.linear(cache.update(x)).sum(1), cache


def test_a_cache_is_written_to_as_eager_does() -> None:
    model = Recurrent().eval()
    compiled = hub.compile(model, options=OPTIONS)

    def run(one: Any) -> list[Any]:
        cache, generator, found = Cache(), torch.Generator().manual_seed(1), []
        for _ in range(12):
            result, given = one(torch.randn(2, 1, 4, generator=generator), cache)
            assert given is cache
            found.append((result, cache.rows, cache.n_calls, dict(cache.names)))
        return found

    ready(compiled, lambda: run(compiled))
    found: list[Any] = []
    assert n_direct(compiled, lambda: found.extend(run(compiled))) >= 8, program_of(compiled).why_dynamo
    for ours, eagers in zip(found, run(model), strict=True):
        assert_same(ours, eagers, "cache")
    with pytest.raises(TypeError):
        compiled(torch.randn(2, 1, 4))  # eager's error


def test_a_cache_of_another_class_or_kind_is_noticed() -> None:
    class Doubling(Cache):
        def update(self, row: torch.Tensor) -> torch.Tensor:
            """Differ from the other class."""
            return super().update(2 * row)

    model = Recurrent().eval()
    compiled = hub.compile(model, options=OPTIONS)
    x = torch.ones(2, 1, 4)

    def started() -> Cache:
        cache = Cache()
        cache.rows = torch.ones(2, 3, 4)
        return cache

    ready(compiled, lambda: compiled(x, started()))
    assert n_direct(compiled, lambda: compiled(x, started())) == 1
    for make in (Doubling, Cache):
        assert_same(compiled(x, make())[0], model(x, make())[0], make.__name__)


class Writing(nn.Module):
    """A model that writes to an input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(3, 4))

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return what was written plus what is kept."""
        x.index_copy_(0, at, 2 * self.kept[:1])
        return x + self.kept


def test_an_input_that_is_written_to_may_become_the_models_own() -> None:
    model, at = Writing().eval(), torch.tensor([1])
    compiled = hub.compile(model, options=OPTIONS)
    ready(compiled, lambda: compiled(torch.zeros(3, 4), at))
    x, y = torch.zeros(3, 4), torch.zeros(3, 4)
    assert n_direct(compiled, lambda: assert_same(compiled(x, at), model(y, at), "written")) == 1
    assert_same(x, y, "input")
    model.kept.fill_(1.0)
    expected = model(model.kept, at)
    model.kept.fill_(1.0)
    assert_same(compiled(model.kept, at), expected, "the buffer as an input")


class Special(nn.Module):
    """A model that treats one of its own tensors in another way."""

    def __init__(self, *, is_read: bool) -> None:
        super().__init__()
        self.is_read = is_read
        self.register_buffer("special", torch.ones(6, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return one of two results, by which tensor the first input is."""
        return (y + x if self.is_read else y) * (5.0 if x is self.special else 2.0) + self.special.sum()


@pytest.mark.parametrize("is_read", [True, False])
def test_an_input_of_any_size_may_be_the_models_own(is_read: bool) -> None:
    model = Special(is_read=is_read).eval()
    compiled = hub.compile(model, options=OPTIONS)

    def calls() -> None:
        for size in (2, 3, 4, 5, 7, 8, 9):
            compiled(torch.randn(size, 4), torch.randn(size, 4))

    ready(compiled, calls)
    assert n_direct(compiled, calls) > 0
    given = model.special, torch.randn(6, 4)
    for _ in range(3):
        assert_same(compiled(*given), model(*given), "the buffer as an input")


class Of:
    """An object that is compared by which one it is."""


def test_an_object_that_is_gone_is_not_taken_for_a_new_one_at_its_place() -> None:
    class Matching(nn.Module):
        def forward(self, x: torch.Tensor, key: Any, cache: Cache) -> torch.Tensor:
            cache.n_calls = 3
            return x + 1 if key is self.key() else x - 1

    model, x, cache = Matching().eval(), torch.ones(2), Cache()
    keys = [Of()]
    model.key = weakref.ref(keys[0])
    compiled = hub.compile(model, options=OPTIONS)
    ready(compiled, lambda: compiled(x, keys[0], cache))
    keys.clear()
    gc.collect()
    others = [Of() for _ in range(50)]  # one of them lies where the first lay, most likely
    for other in others:
        assert_same(compiled(x, other, cache), model(x, other, cache), "another object")


def test_a_check_is_over_once_an_object_is_gone_that_it_knows_by_identity() -> None:
    check: Any = object.__new__(general.Check)
    check._living, check._is_over, check._holds = [], False, lambda _: True
    known = Of()
    check.id_ref(known, "known")
    assert check.holds({})
    del known
    gc.collect()
    assert not check.holds({})


def test_an_input_that_the_model_holds_is_not_apart_from_it() -> None:
    weight = torch.ones(2)
    watch: Any = types.SimpleNamespace(tensors=(weight,))
    place: Any = types.SimpleNamespace(name="L['args'][0]")
    are_apart = general.apart([place], watch)
    assert are_apart({"args": (torch.ones(2),)})
    assert not are_apart({"args": (weight,)})


def test_guards_that_no_watch_implies_are_checked_by_dynamos_own_checker() -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names = {"a", "b"}
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if "a" in self.names else x

    model, x = Chosen().eval(), torch.ones(2, 4)
    compiled = hub.compile(model, options=OPTIONS)
    ready(compiled, lambda: compiled(x))
    assert n_direct(compiled, lambda: compiled(x)) == 1
    assert program_of(compiled)._armed.general
    model.names.remove("a")  # a change of a set, which no version tag counts
    assert_same(compiled(x), x, "after the change")
    model.names.add("a")
    assert_same(compiled(x), model(x), "after it was undone")


def test_inputs_of_a_rare_kind_stay_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Scores().eval()
    compiled = hub.compile(model, options={**OPTIONS, "start": "eager"})
    for size in ((3, 7), (3, 7), (4, 9), (5, 11), (6, 13)):
        compiled(ids(*size))
    program = program_of(compiled)
    compiled(ids(7, 12))
    n_made = program._captures.n_made
    assert_same(compiled(ids(1, 9)), model(ids(1, 9)), "one row")
    assert program._captures.n_made == n_made
    assert "in eager until" in program.why_dynamo
    monkeypatch.setattr(program_module, "PATIENCE", 0.0)
    compiled(ids(1, 9))
    assert program._captures.n_made == n_made + 1
    assert hub.wait(compiled, 600)


def test_a_program_is_freed_with_its_model() -> None:
    model = Recurrent().eval()
    compiled = hub.compile(model, options=OPTIONS)

    def started() -> Cache:
        cache = Cache()
        cache.rows = torch.ones(2, 3, 4)
        return cache

    for _ in range(4):
        compiled(torch.ones(2, 1, 4), started())
    weight, program = weakref.ref(model.linear.weight), weakref.ref(program_of(compiled))
    caches = weakref.ref(cache := started())
    compiled(torch.ones(2, 1, 4), cache)
    del cache
    gc.collect()
    assert caches() is None
    del model, compiled
    gc.collect()
    assert program() is None
    assert weight() is None
