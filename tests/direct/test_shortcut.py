"""Fewer guards before calls of `torch.compile(model, backend="hub")`: the same calls are served, and no other ones."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import hub
from hub.frontend.direct import bypass, shortcut
from hub.frontend.direct.compile import program_of
from hub.frontend.direct.entry import Entry
from hub.frontend.direct.shortcut import MIN_USES
from hub.frontend.direct.trial import Pause
from hub.frontend.direct.watch import Watch
from hub.frontend.direct.watches import Held
from tests.direct.answers import assert_same, outcome
from tests.direct.guards import Guards, changes_of, settings
from tests.direct.test_mutations import LASTING, MODELS, OPTIONS, Model, made

X = torch.randn(2, 4)


class Watched:
    """The guards of all frames that were captured since, and how their calls were let through."""

    def __init__(self) -> None:
        self.guards: list[shortcut.Guards] = []
        self.n_short = self.n_whole = 0

    def shorter(self) -> int:
        """Return how many calls were let through without a check of all guards since the last question."""
        found, self.n_short = self.n_short, 0
        return found


@pytest.fixture(params=["by guards", "by entries"])
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Check at each shortcut that a check of all guards passes, too."""
    found = Watched()
    if request.param == "by guards":
        monkeypatch.setattr(shortcut, "bypass", lambda *_: None)
    made, hold, all_hold = shortcut.Guards.__init__, shortcut.Guards._hold, shortcut.Guards._all_hold

    def init(self: shortcut.Guards, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        found.guards.append(self)

    def counted(self: shortcut.Guards, scope: Any) -> bool:
        found.n_whole += 1
        return all_hold(self, scope)

    def compared(self: shortcut.Guards, scope: Any) -> bool:
        n_whole = found.n_whole
        holds = hold(self, scope)
        if found.n_whole == n_whole:
            found.n_short += 1
            if not (holds and all_hold(self, scope)):  # noted, since an error in a guard only makes it fail
                wrong.append(str(self.whole.check_verbose(scope)))
        return holds

    def entry(held: Held, *args: Any) -> Entry | None:
        if (result := entry_of(held, *args)) is not None:
            result.leaves_of = functools.partial(leaves, result.leaves_of, weakref.ref(held))
        return result

    def leaves(leaves_of: Any, owner: weakref.ref[Held], args: Any, kwargs: Any) -> Any:
        result = leaves_of(args, kwargs)
        if result is not None and (held := owner()) is not None:
            found.n_short += 1
            guards, (model,) = held.guards(), held.roots
            assert isinstance(guards, shortcut.Guards)
            if not all_hold(guards, scope := _scope(guards, model, args, kwargs)):
                wrong.append(str(guards.whole.check_verbose(scope)))
        return result

    entry_of = bypass._entry
    monkeypatch.setattr(bypass, "_entry", entry)
    wrong: list[str] = []
    monkeypatch.setattr(shortcut.Guards, "__init__", init)
    monkeypatch.setattr(shortcut.Guards, "_hold", compared)
    monkeypatch.setattr(shortcut.Guards, "_all_hold", counted)
    yield found
    assert wrong == []


def _scope(guards: shortcut.Guards, model: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the local variables with which a call of the model begins, in the code that Dynamo captured."""
    if guards._names != ("self",):  # PyTorch's function around modules of its own
        return {guards._names[0]: model, "args": args, "kwargs": kwargs}
    forward = type(model).forward
    cells = dict(zip(forward.__code__.co_freevars, (one.cell_contents for one in forward.__closure__ or ()), strict=True))
    return {**cells, **inspect.signature(forward).bind(model, *args, **kwargs).arguments}


def compiled_by_torch(model: Any, **options: Any) -> Any:
    """Return what `torch.compile` makes of a model, in eager: no compiler takes part."""
    return torch.compile(model, backend="hub", options={**OPTIONS, **options})


def used(watched: Watched, compiled: Any, *args: Any) -> None:
    """Call until a call is let through by a watch."""
    for _ in range(4):
        for guards in watched.guards:
            guards._pause = Pause()
        compiled(*args)
    assert watched.shorter() > 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of names that a change took away
@pytest.mark.parametrize(("name", "one_in"), [("plain", 1), ("bert", 8), pytest.param("bert", 1, marks=pytest.mark.slow)])
def test_no_change_of_what_a_guard_reads_is_missed(
    name: str, one_in: int, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any change, a call that takes the shortcut passes Dynamo's whole check, too (`watched` compares).

    Its answer is eager's.
    """
    listened = Guards(monkeypatch)
    model, args = MODELS[name]()
    direct = hub.compile(model.eval(), options=OPTIONS)
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        for _ in range(3):
            direct(*args)
        found = [one for one in changes_of(listened.found, program_of(direct)) if not any(n in one.name for n in LASTING)]
        used(watched, compiled, *args)
        changes = [*found[::one_in], *settings()]
        for change in changes:
            for guards in watched.guards:
                guards._pause = Pause()
            watched.shorter()
            for _ in range(2):
                compiled(*args)
            if not watched.shorter():  # Dynamo drops code when an object dies that a change took away
                torch._dynamo.reset()
                used(watched, compiled, *args)
            with torch.compiler.set_stance("eager_on_recompile"):
                change.apply()
                try:
                    watched.shorter()
                    torch.manual_seed(0)
                    answer = outcome(compiled, args)
                    torch.manual_seed(0)
                    if watched.shorter():  # else Dynamo decided, which ignores hooks that are added later, for one
                        assert_same(answer, outcome(model, args), change.name)
                finally:
                    change.undo()
                assert_same(outcome(compiled, args), outcome(model, args), f"{change.name}, undone")
    assert len(changes) > 150


def in_place(model: nn.Module) -> Any:
    """Compile a module in place."""
    model.compile(backend="hub", options=OPTIONS)
    return model


def as_function(model: nn.Module) -> Any:
    """Compile a function that calls a module of its closure."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    return compiled_by_torch(call)


@pytest.mark.parametrize("way", [compiled_by_torch, in_place, as_function])
def test_calls_are_let_through_by_a_watch(way: Callable[[Any], Any], watched: Watched) -> None:
    """With each way of compiling, and a change of the model is noticed."""
    model = Model().eval()
    expected = copy.deepcopy(model)
    with torch.no_grad():
        compiled = way(model)
        used(watched, compiled, X)
        model.config.scale = expected.config.scale = 3.0
        torch.testing.assert_close(compiled(X), expected(X))
        model.train(), expected.train()
        torch.manual_seed(0)
        answer = compiled(X)
        torch.manual_seed(0)
        torch.testing.assert_close(answer, expected(X))


def test_training_takes_the_shortcut_between_optimizer_steps(watched: Watched) -> None:
    """An optimizer writes to weights, which no guard reads."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    expected = copy.deepcopy(model)
    compiled = compiled_by_torch(model)
    for one, call in ((model, compiled), (expected, expected)):
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        for _ in range(6):
            optimizer.zero_grad()
            call(X).square().sum().backward()
            optimizer.step()
    assert watched.shorter() > 0
    torch.testing.assert_close(model[0].weight, expected[0].weight)


def test_modules_of_one_class_have_watches_of_their_own(watched: Watched) -> None:
    """They share code and guards. A change of one is no change of the other."""
    blocks = [Model().eval() for _ in range(3)]
    compiled = [compiled_by_torch(block) for block in blocks]
    with torch.no_grad():
        for _ in range(4):
            for block, call in zip(blocks, compiled, strict=True):
                torch.testing.assert_close(call(X), block(X))
        assert watched.shorter() > 0
        blocks[1].config.scale = 4.0
        for block, call in zip(blocks, compiled, strict=True):
            torch.testing.assert_close(call(X), block(X))


def test_a_model_that_changes_in_each_call_is_watched_ever_less(watched: Watched) -> None:
    """Making a watch costs more than a check of all guards."""

    model = Model().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        for number in range(40):
            model.other = number  # which no guard reads
            compiled(X)
        assert watched.guards[0]._pause.n_calls >= 8
        for _ in range(MIN_USES):
            compiled(X)
    assert watched.shorter() > 0


@pytest.mark.parametrize("kept", ["model", "compiled", "neither"])
def test_a_watch_keeps_no_model_alive(kept: str, watched: Watched) -> None:
    """It belongs to the compiled model, not to the code, which PyTorch keeps for good."""
    model = Model().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        used(watched, compiled, X)
    watched.guards.clear()
    last = weakref.ref(model.blocks[0])
    held = model if kept == "model" else compiled if kept == "compiled" else None
    del model, compiled
    gc.collect()
    if held is not None:
        assert last() is not None
        del held
        gc.collect()
    assert last() is None


def test_a_part_that_is_replaced_is_freed(watched: Watched) -> None:
    """The next call drops what watched it."""
    model = Model().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        used(watched, compiled, X)
        last = weakref.ref(model.blocks[0])
        model.blocks[0] = copy.deepcopy(model.blocks[0])
        compiled(X)
        gc.collect()
        assert last() is None
        used(watched, compiled, X)


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_written_weights_are_noticed(mode: str, watched: Watched) -> None:
    """A graph whose weights the watch vouches for computes with new values after each kind of write."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]).requires_grad_(mode == "training")
    compiled = compiled_by_torch(model, backends=["onnxruntime"])
    writes: list[Callable[[], Any]] = [
        lambda: model[0].weight.detach().mul_(2),
        lambda: setattr(model[1].weight, "data", torch.rand(4, 4)),
        lambda: model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()}),
        lambda: setattr(model[2], "weight", nn.Parameter(torch.rand(4, 4), requires_grad=mode == "training")),
        lambda: model.requires_grad_(mode != "training"),
    ]
    for write in [lambda: None, *writes]:
        write()
        for _ in range(4):
            torch.testing.assert_close(compiled(X), model(X), rtol=1e-4, atol=1e-4)
    assert watched.shorter() > 0


def test_many_models_one_after_the_other_are_all_captured(watched: Watched) -> None:
    """What PyTorch compiled for a model that is gone does not count: its code is compiled for the next one."""
    for _ in range(12):
        model = Model().eval()
        model.blocks[0].config.scale = torch.rand(()).item()
        compiled = compiled_by_torch(model)
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(compiled(X), model(X))
        del model, compiled
        gc.collect()


def test_the_reason_for_a_new_capture_names_the_guard(watched: Watched) -> None:
    """As without the shortcut."""
    model = Model().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        used(watched, compiled, X)
        model.config.scale = 5.0
        with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(Exception, match="scale"):
            compiled(X)


def test_an_input_that_is_a_weight_is_noticed(watched: Watched) -> None:
    """Dynamo captures such a call anew; a graph that writes to its input would else read the old weight."""

    class Written(Model):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            y.add_(1)
            return super().forward(x) + self.weights[0] + y

    model = Written().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        used(watched, compiled, X, torch.ones(4))
        expected = copy.deepcopy(model)
        torch.testing.assert_close(compiled(X, model.weights[0]), expected(X, expected.weights[0]))


def test_compiled_models_are_copied_and_pickled_as_before(watched: Watched) -> None:
    """A copy watches its own model."""
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        used(watched, compiled, X)
        for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
            torch.testing.assert_close(other(X), model(X))
            other._orig_mod[0].weight.zero_()
            torch.testing.assert_close(other(X), other._orig_mod(X))
            torch.testing.assert_close(compiled(X), model(X))


def test_a_choice_of_guards_of_the_users_own_stays_alone(watched: Watched) -> None:
    """`guard_filter_fn` decides alone."""
    model = Model().eval()
    compiled = compiled_by_torch(model, guard_filter_fn=lambda entries: [False for _ in entries])
    with torch.no_grad():
        before = compiled(X)
        model.config.scale = 7.0
        torch.testing.assert_close(compiled(X), before)
    assert watched.guards == []


def test_programs_are_told_apart_without_guards(watched: Watched) -> None:
    """Under the stance that skips guards, PyTorch checks what distinguishes the programs, by the failures so far."""
    model = Model().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        for scale in (1.5, 3.0, 1.5, 3.0):
            model.config.scale = scale
            for _ in range(3):
                torch.testing.assert_close(compiled(X), model(X))
        with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
            for scale in (1.5, 3.0):
                model.config.scale = scale
                torch.testing.assert_close(compiled(X), model(X))


def test_an_input_whose_identity_alone_counts_is_compared(watched: Watched) -> None:
    """Dynamo gives the graph no such input."""

    class Special(Model):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("special", torch.ones(2, 4))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = super().forward(y)
            return z + 1 if x is self.special else z + self.special

    model = Special().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        used(watched, compiled, torch.zeros(2, 4), X)
        torch.testing.assert_close(compiled(model.special, X), model(model.special, X))


def test_an_error_in_a_guard_reaches_the_caller(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo takes an error for a guard that fails, and would drop it: for one, that of Ctrl-C."""
    model = Model().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        used(watched, compiled, X)

        with monkeypatch.context() as patch:
            patch.setattr(Watch, "compare", _raising)
            with pytest.raises(KeyboardInterrupt):
                compiled(X)
        torch.testing.assert_close(compiled(X), model(X))


def _raising(_: Any) -> int:
    raise KeyboardInterrupt


def test_a_model_in_a_variable_of_a_closure_is_freed_when_another_one_takes_its_place(watched: Watched) -> None:
    """The compiled function keeps the module that its variable holds now."""
    model = Model().eval()

    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    compiled = compiled_by_torch(call)
    with torch.no_grad():
        used(watched, compiled, X)
        last = weakref.ref(model.blocks[0])
        model = Model().eval()
        used(watched, compiled, X)
        torch.testing.assert_close(compiled(X), model(X))
    gc.collect()
    assert last() is None


def test_a_variable_without_a_value_is_pythons_error(watched: Watched) -> None:
    """And nothing of it is left for the next call."""
    model = Model().eval()

    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    compiled, kept = compiled_by_torch(call), model
    with torch.no_grad():
        used(watched, compiled, X)
        del model
        with pytest.raises(NameError):
            compiled(X)
        model = kept
        torch.testing.assert_close(compiled(X), model(X))


def test_code_is_dropped_with_an_object_that_only_a_watch_kept(watched: Watched) -> None:
    """An object whose identity a guard compares is replaced: PyTorch drops the code of its guards when it dies."""

    class Called:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    model = Model().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        for number in range(12):
            model.scaled = functools.lru_cache(made(number)) if number % 2 else Called(number)
            for _ in range(3):
                torch.testing.assert_close(compiled(X), model(X))
                gc.collect()


def test_a_model_in_a_global_variable_is_not_kept(watched: Watched) -> None:
    """It is not the compiled function's."""
    names: dict[str, Any] = {"model": Model().eval()}
    exec("def call(x):\n    return model(x)", names)
    compiled = compiled_by_torch(names["call"])
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(compiled(X), names["model"](X))
    last = weakref.ref(names["model"].blocks[0])
    names["model"] = None
    gc.collect()
    assert last() is None


def test_inputs_that_are_iterators_are_compared(watched: Watched) -> None:
    """Reading them takes Dynamo's own functions."""
    model = Model().eval()
    compiled = compiled_by_torch(lambda pair: model(next(pair)) + next(pair))
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(compiled(iter((X, X))), model(X) + X)
    assert len(watched.guards) <= 1


def test_a_program_without_tensors_among_its_inputs_checks_all_guards(watched: Watched) -> None:
    """Nothing else would tell that a mode intercepts its operators."""

    class Alone(Model):
        def forward(self) -> torch.Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward(self.loose[0].expand(2, 4))

    model = Alone().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(), model())
    assert watched.guards == []


def test_parts_with_python_between_them_have_a_watch_each(watched: Watched) -> None:
    """A graph break makes several frames of one model."""

    class Broken(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = super().forward(x)
            torch._dynamo.graph_break()
            return self.blocks[0](x) * self.config.scale

    model = Broken().eval()
    compiled = compiled_by_torch(model)
    with torch.no_grad():
        used(watched, compiled, X)
        assert sum(bool(guards._watches) for guards in watched.guards) >= 2
        model.config.scale = 9.0
        torch.testing.assert_close(compiled(X), model(X))


def test_a_module_that_is_passed_as_an_argument_is_not_watched(watched: Watched) -> None:
    """The compiled function would keep it alive."""
    compiled = compiled_by_torch(lambda model, x: model(x))
    model = Model().eval()
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(compiled(model, X), model(X))
    last = weakref.ref(model.blocks[0])
    del model
    gc.collect()
    assert last() is None
