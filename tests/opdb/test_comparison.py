"""The comparison with eager sees what it is there for: a suite that cannot fail proves nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import hub
from hub.errors import HubWarning
from hub.plan import Event
from tests.opdb import allowed, findings
from tests.opdb.allowed import Entry, not_allowed
from tests.opdb.calls import Call, Cell, calls_of, cells_of, copied, operators
from tests.opdb.findings import Examination, Finding
from tests.opdb.outcome import Outcome, difference, in_eager, perform

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def call_of(function: Callable[..., Any], *arguments: Any, mode: Any = "inference", index: int = 0) -> Call:
    """Return a sample call of a function of our own."""
    return Call(Cell("made up", "float32", mode), index, function, (arguments, {}), lambda result: result)


def outcome(function: Callable[..., Any], *arguments: Any, mode: Any = "inference") -> Outcome:
    """Return what a function leaves behind in eager."""
    found = in_eager([call_of(function, *arguments, mode=mode)])
    assert not isinstance(found, Exception), found
    return found[0]


def _writing(x: torch.Tensor) -> torch.Tensor:
    result = x.exp()
    x[0] = 7
    return result


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "a value": (lambda x: x.exp() + 1e-3 * (x == x.max()), r"1 of 12 wrong; at \[2, 3\]"),
    "a NaN": (lambda x: x.exp().where(x < 2, torch.nan), "NaN or infinity"),
    "an infinity": (lambda x: x.exp().where(x < 2, torch.inf), "NaN or infinity"),
    "the dtype": (lambda x: x.exp().double(), "dtype torch.float64"),
    "the shape": (lambda x: x.exp()[:2], r"shape torch.Size\(\[2, 4\]\)"),
    "the strides": (lambda x: x.exp().t().contiguous().t(), r"strides \(1, 3\)"),
    "one more result": (lambda x: (x.exp(), x), "result is a"),
    "a number": (lambda x: 3, "an int, a tensor expected"),
    "a written argument": (_writing, "argument 0 afterwards: 4 of 12 wrong"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_outcome_is_seen(fault: str) -> None:
    """An outcome that is wrong in one way is said to be wrong in that way, and a right one is not."""
    function, message = WRONG[fault]
    call = call_of(torch.exp, X)
    assert re.search(message, difference(call, outcome(function, X), outcome(torch.exp, X)))
    assert not difference(call, outcome(torch.exp, X), outcome(torch.exp, X))


def test_shared_memory_is_seen() -> None:
    """A copy where eager gives a view differs, and so does a view where eager gives a copy, of arguments and of results."""
    call = call_of(torch.t, X)
    view, copy = outcome(torch.t, X), outcome(lambda x: x.t().clone(), X)
    assert "share memory" in difference(call, copy, view)
    assert "share memory" in difference(call, view, copy)
    twice, apart = outcome(lambda x: (y := x + 1, y), X), outcome(lambda x: (x + 1, x + 1), X)
    assert "share memory" in difference(call, twice, apart)


def test_a_wrong_gradient_is_seen() -> None:
    """A gradient of another size differs, one that is off by a rounding does not."""
    leaf = X.clone().requires_grad_()
    call = call_of(torch.sin, leaf, mode="training")
    right = outcome(torch.sin, leaf, mode="training")
    close = outcome(lambda x: (x * 1.0000001).sin(), leaf, mode="training")
    wrong = outcome(lambda x: x.sin().detach() + x - x.detach(), leaf, mode="training")
    assert "gradient 0" in difference(call, wrong, right)
    assert not difference(call, close, right)


def test_noise_is_free_where_the_operator_has_it() -> None:
    """A result may move as far as it moves in float64 where inputs move by one rounding: a sum that cancels, say."""
    terms = torch.cat([torch.randn(500, generator=torch.Generator().manual_seed(0)) * 1e4, torch.tensor([1e-3])])
    terms = torch.cat([terms, -terms[:500].flip(0)])
    call = call_of(lambda x: x.sum(0), terms)
    backwards = outcome(lambda x: x.flip(0).cumsum(0)[-1], terms)
    assert not difference(call, backwards, outcome(call.function, terms))


def test_copies_are_as_the_arguments() -> None:
    """Copies of arguments have the same values and strides and share memory among themselves, and with nothing else."""
    base = torch.arange(12.0).reshape(3, 4)
    (left, right, again), words = copied(((base[1:], base.t(), base[1:]), {"numbers": [base, 3, None]}))
    assert left.stride() == (4, 1)
    assert right.stride() == (1, 4)
    left.fill_(-1)
    assert torch.equal(right.t()[1:], left)
    assert torch.equal(words["numbers"][0][1:], again)
    assert torch.equal(base, torch.arange(12.0).reshape(3, 4))


def test_an_error_is_an_outcome() -> None:
    """A call that raises in eager has to raise the same from the hub; another error, or none, is a finding."""

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("no")

    wanted = in_eager([call_of(fails, X)])
    assert isinstance(wanted, KeyError)
    calls = [call_of(fails, X)]
    assert not findings.compared(calls, lambda: iter([KeyError("no")]), wanted)
    assert "ValueError" in findings.compared(calls, lambda: iter([ValueError("other")]), wanted)
    assert "no error" in findings.compared(calls, lambda: iter([perform(calls, lambda _: [X])]), wanted)


@pytest.fixture
def faulty_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the hub compute 0.1 more than is right whenever a call takes a tensor of two elements."""

    def spoiled(tensor: torch.Tensor) -> torch.Tensor:
        return tensor + 0.1 if tensor.numel() == 2 else tensor

    def by_the_hub(_: Examination, calls: Sequence[Call]) -> Any:
        yield perform(calls, lambda given: [spoiled(call.function(*given[at][0])) for at, call in enumerate(calls)])

    monkeypatch.setattr(Examination, "_by_the_hub", by_the_hub)


@pytest.mark.usefixtures("faulty_hub")
def test_the_call_behind_a_difference_is_found() -> None:
    """Of many calls in one program exactly those that differ are named, and what aot_eager makes of them is tried."""
    sizes = [3, 2, 4, 5, 2, 6, 7]
    calls = [call_of(torch.exp, torch.ones(size), index=at) for at, size in enumerate(sizes)]
    found = list(Examination({}).findings(calls))
    assert [finding.call for finding in found] == ["made up-float32-inference 1", "made up-float32-inference 4"]
    assert {finding.aot_eager for finding in found} == {""}


def test_a_call_that_is_not_captured_hides_no_other() -> None:
    """Dynamo leaves a whole program alone that takes a sparse tensor; the other calls are tried without it."""
    sparse = next(calls_of(cells_of("sparse.sampled_addmm")[0]))
    calls = [call_of(torch.exp, X), sparse, call_of(torch.sin, X, index=1)]
    examination = Examination({"tune": "off", "backends": ("onnxruntime",)})
    assert not list(examination.findings(calls))
    assert examination.bought == 2


LISTED = Entry("made up", "a reason", ("float32",), ("inference",), (0, 1))


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ([Finding("made up-float32-inference 0", "wrong", "wrong, too")], None),
        ([Finding("made up-float32-inference 0", "wrong", "")], "aot_eager is right"),
        ([], "take it off"),
    ],
)
def test_the_list_is_checked_both_ways(
    monkeypatch: pytest.MonkeyPatch, found: list[Finding], complaint: str | None
) -> None:
    """A listed call may differ where aot_eager differs too, and must not be listed once it is right."""
    monkeypatch.setattr(allowed, "entries", lambda: (LISTED,))
    monkeypatch.setattr(allowed, "is_made_for_this_torch", lambda: True)
    wrong = not_allowed([call_of(torch.exp, X)], found)
    assert (wrong == []) if complaint is None else (complaint in wrong[0])


def test_a_call_that_is_not_listed_may_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not on the list is wrong even if aot_eager fails too: a person has to look at it first."""
    monkeypatch.setattr(allowed, "entries", lambda: (LISTED,))
    monkeypatch.setattr(allowed, "is_made_for_this_torch", lambda: False)
    found = [Finding("made up-float32-inference 2", "wrong", "wrong, too")]
    assert "aot_eager fails too" in not_allowed([call_of(torch.exp, X, index=2)], found)[0]


def test_the_list_names_what_there_is() -> None:
    """Each entry is about operators, dtypes and modes of the database, and has a reason."""
    for entry in allowed.entries():
        assert entry.operator in operators(), entry
        cells = cells_of(entry.operator)
        assert any(cell.dtype in entry.dtypes and cell.mode in entry.modes for cell in cells), entry


def test_the_list_is_refused_without_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry without a reason cannot be read."""
    file = tmp_path / "allowed.toml"
    file.write_text('torch = "2.13"\n[[allowed]]\noperator = "abs"\nreason = " "\n')
    monkeypatch.setattr(allowed, "FILE", file)
    allowed.entries.cache_clear()
    with pytest.raises(ValueError, match="abs lacks a reason"):
        allowed.entries()
    allowed.entries.cache_clear()


@pytest.mark.parametrize(
    ("kind", "stage", "error", "expected"),
    [
        ("failed", "compile", "CompileError", True),
        ("fallback", "run", "RunError", True),
        ("failed", "support", "", True),
        ("fallback", "verify", "AccuracyError", False),
        ("note", "compile", "", False),
        ("failed", "compile", "ConstantsRefused", False),
        ("fallback", "compile", "ConstantsRefused", False),
    ],
)
def test_a_plugins_fault_is_told_from_what_it_may_refuse(kind: Any, stage: Any, error: str, expected: bool) -> None:
    """A failure at what was accepted counts, verification's refusals and those of constants' values do not."""
    event = Event(kind=kind, stage=stage, message="refused: ConstantsRefused", backend="openvino", error=error)
    assert findings.is_fault(event) == expected


def test_constants_that_a_backend_refuses_are_no_fault() -> None:
    """OpenVINO learns of an integer beyond int32 when it compiles: the event names the error's class, whatever it says."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return (x + torch.tensor([2**40, 1])).relu()

    options = {"tune": "off", "backends": ("openvino",)}
    call = findings.compile_with(shifted, backend="hub", options=options)
    x = torch.tensor([1, 2])
    with pytest.warns(HubWarning):
        assert torch.equal(call(x), shifted(x))
    (plan,) = hub.plans(call)
    assert [(event.kind, event.error) for event in plan.events if event.error] == [("fallback", "ConstantsRefused")]
    assert not any(map(findings.is_fault, plan.events))
