"""An executable is trusted only if form, memory, inputs and numbers are eager's, on real and on generated inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from hub.errors import AccuracyError, ContractError, HubError, InputRefused, RunError
from hub.partition.extract import extract
from hub.plugin.graph import Cluster
from hub.plugin.table import operator_name
from hub.testing.operators import case_cluster
from hub.testing.operators.sample import at, b, call, distinct, f, f64, i64, pos
from hub.testing.single import capture, whole_cluster
from hub.verification.verify import Verified, verify, verify_thoroughly

Fault = Callable[[list[torch.Tensor], Sequence[Any]], Any]
Case = tuple[Cluster, tuple[Any, ...]]
Faulty = Callable[[Cluster, Fault], Callable[..., list[torch.Tensor]]]

LONG_S = 60.0


def thoroughly(case: Case, executable: Any, *, accuracy: float | None = None, budget_s: float = LONG_S) -> Verified:
    """Verify with time for every kind."""
    cluster, inputs = case
    return verify_thoroughly(cluster, "backend", executable, inputs, accuracy, budget_s=budget_s)


def once(case: Case, executable: Any, *, accuracy: float | None = None) -> Verified:
    """Verify on the real inputs."""
    cluster, inputs = case
    return verify(cluster, "backend", executable, inputs, accuracy)


both = pytest.mark.parametrize("check", [once, thoroughly])


def where_inputs(test: Callable[[torch.Tensor], bool], fault: Fault) -> Fault:
    """Return a fault that shows only if the first input passes a test."""
    return lambda outputs, inputs: fault(outputs, inputs) if test(inputs[0]) else None


def _off(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
    outputs[0].view(-1)[3] += 1e-3


def _nan(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
    outputs[0].view(-1)[0] = math.nan


# --- Right executables ------------------------------------------------------------------------------------------------

RIGHT: dict[str, Case] = {
    "softmax": case_cluster("aten.softmax.int", call(f(8, 16), -1)),
    "linear": case_cluster("aten.linear.default", call(f(8, 32), f(16, 32), f(16)), constants=(1, 2)),
    "layer_norm": case_cluster("aten.layer_norm.default", call(f(8, 32), [32], f(32), f(32), 1e-12)),
    "rsqrt": case_cluster("aten.rsqrt.default", call(pos(8, 8))),
    "argmax": case_cluster("aten.argmax.default", call(distinct(8, 16), -1)),
    "topk": case_cluster("aten.topk.default", call(distinct(8, 16), 3)),
    "embedding": case_cluster("aten.embedding.default", call(f(50, 8), at(6, below=50)), constants=(0,)),
    "where": case_cluster("aten.where.self", call(b(4, 4), f(4, 4), f(4, 4))),
    "float64": case_cluster("aten.mm.default", call(f64(8, 32), f64(32, 4))),
    "integers": case_cluster("aten.add.Tensor", call(i64(4, 4), i64(4))),
    "sizes": case_cluster("aten.sum.dim_IntList", call(f(6, 9), [1]), dynamic=True),
    "complex": case_cluster("aten.fft_rfft.default", call(f(4, 16))),
}


@both
@pytest.mark.parametrize("name", RIGHT)
def test_eager_itself_is_right(name: str, check: Any) -> None:
    """A second eager, with outputs in memory of its own, passes; its error is that of rounding."""
    cluster, _ = RIGHT[name]
    verified = check(RIGHT[name], lambda *inputs: [value.clone() for value in cluster.module(*inputs)])
    assert 0 <= verified.error < 1e-5
    assert not verified.is_finite_only


def test_every_kind_that_fits_is_tried(softmax: Case) -> None:
    """With time enough, all kinds of floating inputs are tried, and the outputs are those of the real inputs."""
    cluster, inputs = softmax
    verified = thoroughly(softmax, cluster.module)
    wanted = {
        "normal",
        "wide",
        "NaN",
        "infinities",
        "large",
        "zeros",
        "all equal",
        "tiny",
        "huge",
        "denormal",
        "negative zeros",
    }
    assert set(verified.kinds) == wanted
    assert torch.equal(verified.outputs[0], cluster.module(*inputs)[0])
    assert verified.notes == ()


def test_float64_is_computed_where_eager_alone_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result within the roundings of a sum is right whatever float64 says; one further away is held against float64."""
    asked: list[Cluster] = []

    def wide_run(cluster: Cluster, inputs: Sequence[Any]) -> None:
        asked.append(cluster)

    monkeypatch.setattr("hub.verification.reference.float64_outputs", wide_run)
    case = case_cluster("aten.mm.default", call(f(8, 32), f(32, 4)))
    once(case, lambda x, y: [(x.double() @ y.double()).float()])
    assert not asked
    with pytest.raises(AccuracyError):
        once(case, lambda x, y: [x @ y * 1.0001])
    assert asked


def _in_float64(cluster: Cluster) -> Callable[..., list[torch.Tensor]]:
    """Return a program that is more accurate than eager."""

    def run(*inputs: Any) -> list[torch.Tensor]:
        wide = [value.double() if value.is_floating_point() else value for value in inputs]
        return [value.float() for value in cluster.module(*wide)]

    return run


def test_a_more_exact_program_passes_where_eager_overflows() -> None:
    """Where eager is infinite only because it overflows on the way, other results are no faults."""

    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / (x * x).mean(-1, keepdim=True).sqrt()

    case = whole_cluster(Norm(), (torch.randn(4, 8),))
    verified = thoroughly(case, _in_float64(case[0]))
    assert "huge" in verified.kinds


def test_another_order_of_addition_passes() -> None:
    """Sums that are made the other way round are as right, whatever they are made of."""
    case = case_cluster("aten.sum.dim_IntList", call(f(4, 2000), [1]))
    verified = thoroughly(case, lambda x: [x.flip(1).cumsum(1)[:, -1].clone()])
    assert {"normal", "large", "all equal"} <= set(verified.kinds)


def test_overflow_on_the_way_is_no_fault_in_float64_either() -> None:
    """No wider dtype decides what is right then: fourth powers are tried on numbers small enough for them."""

    class Difference(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.square().square() - x.square().square() + 1.0

    case = whole_cluster(Difference(), (torch.randn(6, 8, dtype=torch.float64),))
    verified = thoroughly(case, lambda x: [torch.where(x.isfinite(), x.sign().abs() * 0.0 + 1.0, torch.nan)])
    assert "huge" in verified.kinds


def test_ties_broken_otherwise_pass_on_generated_inputs() -> None:
    """Which of equal values is the largest depends on roundings, once they are results of sums."""

    class Pick(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(1, 64).expand(16, 64).clone())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ self.weight.t() + torch.arange(16) * 1e-9).argmax(-1)

    case = whole_cluster(Pick(), (torch.randn(4, 64) * torch.arange(1, 65),))
    cluster, inputs = case

    def last_of_nearly_equals(x: torch.Tensor) -> list[torch.Tensor]:
        right = cluster.module(x)[0].clone()
        is_tie = not torch.equal(x, inputs[0]) and float(x.abs().max()) < 1e6  # beyond, float64 sees a tie as well
        return [torch.full_like(right, 15) if is_tie else right]

    thoroughly(case, last_of_nearly_equals)


def test_denormals_taken_for_zero_pass() -> None:
    """A machine may flush denormals to zero, even before a logarithm."""
    case = case_cluster("aten.log.default", call(pos(8, 8)))

    def flushing(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.where(x.abs() < torch.finfo(x.dtype).tiny, torch.zeros_like(x), x).log()]

    assert "denormal" in thoroughly(case, flushing).kinds


def test_comparisons_of_denormals_taken_for_zero_pass() -> None:
    """x > 0 is false where a machine takes x for 0; anywhere else it must be eager's."""
    case = case_cluster("aten.gt.Scalar", call(f(4, 3), 0))

    def flushing(x: torch.Tensor) -> list[torch.Tensor]:
        return [x > torch.finfo(x.dtype).tiny]

    assert "denormal" in thoroughly(case, flushing).kinds
    with pytest.raises(AccuracyError, match="expected True, got False"):
        thoroughly(case, lambda x: [x > 0.1])


def test_quotients_of_denormals_may_overflow() -> None:
    """x / y is made as x times 1 / y by some, which is infinite for a denormal y."""
    case = case_cluster("aten.div.Tensor", call(f(6, 6), f(6, 6)))
    assert "denormal" in thoroughly(case, lambda x, y: [x * (1 / y)]).kinds


def test_digits_of_tiny_numbers_may_be_lost() -> None:
    """exp(x) - 1 is 0 for tiny x, where expm1 is x: relative to usual results that is less than a rounding."""
    case = case_cluster("aten.expm1.default", call(f(8, 8)))
    assert {"tiny", "denormal"} <= set(thoroughly(case, lambda x: [(x.double().exp() - 1).float()]).kinds)
    with pytest.raises(AccuracyError, match="tiny"):
        thoroughly(case, lambda x: [torch.where((x.abs() < 1e-7) & (x != 0), 1e-3, x.expm1())])


def test_a_norm_with_nothing_to_divide_by_may_show_the_rounding_of_its_mean() -> None:
    """Of equal values, less their mean, only that mean's rounding is left; MiniLM's norms divide it by a millionth."""
    norm = nn.LayerNorm(384, eps=1e-12, dtype=torch.float32).eval()
    case = whole_cluster(norm, (torch.randn(2, 384),))

    def summed_otherwise(relative: float, absolute: float = 0.0) -> Callable[[torch.Tensor], list[torch.Tensor]]:
        def run(x: torch.Tensor) -> list[torch.Tensor]:
            centred = x - (x.mean(-1, keepdim=True) * (1 + relative) + absolute)
            return [centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()]

        return run

    assert "all equal" in thoroughly(case, summed_otherwise(12 * torch.finfo(torch.float32).eps)).kinds
    with pytest.raises(AccuracyError):
        thoroughly(case, summed_otherwise(0.0, 1e-4))


# --- Wrong numbers ----------------------------------------------------------------------------------------------------

WRONG_NUMBERS: dict[str, Fault] = {
    "one element": _off,
    "a NaN": _nan,
    "an infinity": lambda outputs, _: outputs[0].view(-1).__setitem__(5, math.inf),
    "all": lambda outputs, _: [outputs[0] * 1.001],
    "order": lambda outputs, _: [outputs[0].flip(0)],
    "zeros": lambda outputs, _: [outputs[0] * 0],
}


@both
@pytest.mark.parametrize("fault", WRONG_NUMBERS)
def test_wrong_numbers_are_found(fault: str, check: Any, softmax: Case, faulty: Faulty) -> None:
    """AccuracyError names output, index, what was expected and got, the error and the budget."""
    cluster, _ = softmax
    text = r"output softmax_int \(float32\) at \[\d, \d+\]: expected .* got .* allowed"
    with pytest.raises(AccuracyError, match=text) as caught:
        check(softmax, faulty(cluster, WRONG_NUMBERS[fault]))
    assert (caught.value.backend, caught.value.cluster) == ("backend", cluster.name)
    assert "the real inputs" in str(caught.value)


def test_a_failure_gives_ulps_and_place(softmax: Case, faulty: Faulty) -> None:
    """The message counts the error in units in the last place of the value and of the largest one."""
    cluster, inputs = softmax
    with pytest.raises(AccuracyError) as caught:
        once(softmax, faulty(cluster, _off))
    exact = cluster.module(*inputs)[0].view(-1)[3].item()
    ulps = round(1e-3 / (2**-23 * exact))
    assert "at [0, 3]" in caught.value.message
    found = re.search(r"\((\d+) ULP of the expected value, (\d+) ULP of the largest value\)", caught.value.message)
    assert found is not None
    assert int(found[1]) == pytest.approx(ulps, rel=1e-3)
    assert int(found[2]) < int(found[1])


def test_wrong_integers_are_found() -> None:
    """An integer that is off by one is wrong, and the message says how many are."""
    case = case_cluster("aten.add.Tensor", call(i64(3, 4), i64(4)))
    cluster, _ = case

    def wrong(*inputs: Any) -> list[torch.Tensor]:
        (right,) = cluster.module(*inputs)
        right[2, 1] += 1
        return [right]

    with pytest.raises(AccuracyError, match=r"at \[2, 1\]: expected (-?\d+), got -?\d+; 1 of 12 elements differ"):
        once(case, wrong)


def test_small_numbers_beside_a_mask_are_compared_among_themselves() -> None:
    """A mask's -3e38 does not make any error of the other elements seem small."""

    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
            return (x * 2).masked_fill(~keep, torch.finfo(torch.float32).min)

    case = whole_cluster(Masked(), (torch.randn(8, 8), torch.ones(8, 8, dtype=torch.bool).tril()))
    cluster, _ = case

    def wrong(*inputs: Any) -> list[torch.Tensor]:
        outputs = [value.clone() for value in cluster.module(*inputs)]
        outputs[0][5, 0] += 0.01
        return outputs

    once(case, cluster.module)
    with pytest.raises(AccuracyError, match=r"at \[5, 0\]"):
        once(case, wrong)


def test_results_that_change_between_calls_are_found(softmax: Case, faulty: Faulty) -> None:
    """The second call on the same inputs must give what the first one gave, within the tolerance."""
    calls: list[int] = []

    def later(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
        calls.append(1)
        if len(calls) > 1:
            outputs[0].view(-1)[7] += 0.01

    with pytest.raises(AccuracyError, match="the real inputs, second call"):
        thoroughly(softmax, faulty(softmax[0], later))


def _is_large(x: torch.Tensor) -> bool:
    return bool(x.isfinite().all()) and 1e3 < float(x.abs().median()) < 1e6


ON_SOME_INPUTS: dict[str, Callable[[torch.Tensor], bool]] = {
    "normal": lambda x: bool(x.isfinite().all()) and 0.3 < float(x.abs().median()) < 1 and float(x[0, 0]) != REAL,
    "large": _is_large,
    "zeros": lambda x: not bool(x.any()),
    "all equal": lambda x: bool((x == x.flatten()[0]).all()) and bool(x.any()),
    "tiny": lambda x: bool(x.any()) and 1e-30 < float(x.abs().max()) < 1e-3,
    "huge": lambda x: bool(x.isfinite().all()) and float(x.abs().max()) > 1e9,
    "denormal": lambda x: bool(x.any()) and float(x.abs().max()) < torch.finfo(torch.float32).tiny,
    "negative zeros": lambda x: not bool(x.any()) and bool(x.signbit().all()),
}
REAL = float(RIGHT["softmax"][1][0][0, 0])


@pytest.mark.parametrize("kind", ON_SOME_INPUTS)
def test_faults_on_one_kind_of_inputs_are_found(kind: str, softmax: Case, faulty: Faulty) -> None:
    """A program that is wrong only for inputs of one kind is rejected, and the message names the kind."""
    with pytest.raises(AccuracyError, match=rf"generated inputs \({kind}\)"):
        thoroughly(softmax, faulty(softmax[0], where_inputs(ON_SOME_INPUTS[kind], _off)))


def test_faults_beyond_a_usual_range_are_found_without_time(softmax: Case, faulty: Faulty) -> None:
    """A first example seldom holds values as far from zero as later calls do, and generated ones need not wait for time."""
    with pytest.raises(AccuracyError, match=r"generated inputs \(wide\)"):
        thoroughly(softmax, faulty(softmax[0], where_inputs(lambda x: bool((x < -6).any()), _off)), budget_s=0.0)


class _Picked(nn.Module):
    """A module that works on as many rows as there are positive numbers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.nonzero().float().sum(0)


@pytest.mark.parametrize(("kind", "size"), [("another size", 5), ("size one", 1), ("size zero", 0)])
@pytest.mark.parametrize("budget_s", [LONG_S, 0.0])
def test_faults_at_one_size_are_found(kind: str, size: int, budget_s: float) -> None:
    """However little time is left: unlike NaN, another size cannot be guarded against."""
    captured = capture(_Picked(), (torch.eye(4),))
    names = [node.name for node in captured.graph.nodes if operator_name(node) != "aten.nonzero.default"]
    cluster = extract(captured.graph, names, "c0", captured.weights)
    case = cluster, (torch.eye(4).nonzero(),)

    def wrong(places: torch.Tensor) -> list[torch.Tensor]:
        return [value + (places.shape[0] == size) for value in cluster.module(places)]

    with pytest.raises(AccuracyError, match=rf"generated inputs \({kind}\)"):
        thoroughly(case, wrong, budget_s=budget_s)


def test_a_softmax_that_overflows_is_found(softmax: Case) -> None:
    """The textbook form without the maximum is right on small inputs only."""

    def naive(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.exp() / x.exp().sum(-1, keepdim=True)]

    once(softmax, naive)
    with pytest.raises(AccuracyError, match=r"got nan.*\(large\)"):
        thoroughly(softmax, naive)


def test_a_size_that_was_taken_for_a_constant_is_found() -> None:
    """With symbolic sizes another size is tried."""
    cluster, inputs = case_cluster("aten.mean.dim", call(f(6, 9), [1]), dynamic=True)
    with pytest.raises(AccuracyError, match="another size"):
        thoroughly((cluster, inputs), lambda x: [x.sum(1) / 9], budget_s=0.0)


def test_booleans_are_varied() -> None:
    """A program that never reads its mask is found out."""
    case = case_cluster("aten.where.self", call(b(4, 4), f(4, 4), f(4, 4)))
    cluster, (mask, *_) = case
    with pytest.raises(AccuracyError):
        thoroughly(case, lambda _, x, y: cluster.module(mask, x, y))


def test_overflowing_integers_are_found() -> None:
    """Integers of narrow dtypes are taken to their ends: a program that saturates is wrong there."""
    case = case_cluster("aten.add.Tensor", call(i64(4, 4, dtype=torch.int8), i64(4, dtype=torch.int8)))
    with pytest.raises(AccuracyError, match="large integers"):
        thoroughly(case, lambda x, y: [(x.int() + y).clamp(-128, 127).to(torch.int8)])
    wide = case_cluster("aten.add.Tensor", call(i64(4, 4), i64(4)))
    with pytest.raises(AccuracyError, match="large integers"):
        thoroughly(wide, lambda x, y: [(x.short() + y.short()).long()])


def test_a_difference_on_extreme_integers_is_told_and_no_failure() -> None:
    """A program that adds int64 up in float32 is right on all integers that models have; others are guarded."""
    case = case_cluster("aten.sum.dim_IntList", call(i64(4, 4), [1]))
    verified = thoroughly(case, lambda x: [x.float().sum(1).long()])
    assert verified.is_finite_only
    assert "large integers" in verified.kinds


@pytest.mark.parametrize(
    ("operator", "kind"),
    [(operator, kind) for operator in ("topk", "sort") for kind in ("zeros", "many zeros")] + [("argmax", "zeros")],
)
def test_eagers_order_of_equal_elements_is_the_only_one(operator: str, kind: str) -> None:
    """A place among equal elements that eager does not choose is wrong, whatever PyTorch's documentation leaves open."""
    case = {
        "topk": case_cluster("aten.topk.default", call(distinct(4, 40), 12)),
        "sort": case_cluster("aten.sort.default", call(distinct(4, 40))),
        "argmax": case_cluster("aten.argmax.default", call(distinct(4, 40), -1)),
    }[operator]
    cluster, _ = case

    def of_equal_ones_the_last(x: torch.Tensor) -> list[torch.Tensor]:
        is_kind = not bool(x.any()) if kind == "zeros" else bool((x == 0).any()) and bool(x.any()) and x[0, 0] != x[0, 1]
        outputs = [value.clone() for value in cluster.module(x)]
        if is_kind and bool(x.isfinite().all()):
            places = cluster.module(x.flip(1))[-1]
            outputs[-1] = x.shape[1] - 1 - places
        return outputs

    with pytest.raises(AccuracyError, match=rf"generated inputs \({kind}\)"):
        thoroughly(case, of_equal_ones_the_last)
    assert {"zeros", "many zeros", "all equal"} <= set(thoroughly(case, cluster.module).kinds)


class _Chosen(nn.Module):
    """A module that continues with the rows of the highest scores, all of which are equal where `x` is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(40, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = (x.T @ x).sum(0).topk(6)[1]
        return self.table[places].tanh().sum(-1)


@both
def test_what_is_computed_from_other_places_is_wrong_on_real_inputs(check: Any) -> None:
    """Nor does eager's own sensitivity to the order of equal scores excuse it: all of RT-DETR's may be equal."""
    case = whole_cluster(_Chosen(), (torch.zeros(5, 40),))
    table = next(iter(case[0].constants.values()))
    check(case, case[0].module)
    with pytest.raises(AccuracyError, match="the real inputs"):
        check(case, lambda x: [table[:6].tanh().sum(-1)])


def test_padding_that_no_example_has_is_tried() -> None:
    """Real token numbers start at 5 here; a program that is wrong for 0 is found all the same."""
    cluster, inputs = case_cluster("aten.embedding.default", call(f(50, 4), at(8, 8, below=50)))
    case = cluster, (inputs[0], inputs[1].clamp(min=5))
    with pytest.raises(AccuracyError, match="normal"):
        thoroughly(case, lambda table, ids: [table[ids] * (ids != 0)[..., None]], budget_s=0.0)


def test_a_divisor_of_zero_that_no_example_has_accuses_nobody() -> None:
    """Infinities and NaN come of it, of which compilers make many things; other divisors are tried instead."""
    cluster, inputs = case_cluster("aten.div.Tensor", call(f(8, 8), at(8, 8, below=9)))
    case = cluster, (inputs[0], inputs[1] + 1)
    assert "normal" in thoroughly(case, lambda x, y: [(x / y).nan_to_num(0.0, 0.0, 0.0)]).kinds


class _Complex(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x - x.conj()


def test_complex_inputs_are_varied() -> None:
    """A program of complex numbers is tried on generated ones as others are, and found out where it is wrong on these."""
    case = whole_cluster(_Complex(), (torch.randn(8, 8, dtype=torch.complex64),))
    cluster, _ = case
    verified = thoroughly(case, lambda x: [value.clone() for value in cluster.module(x)])
    assert {"normal", "NaN", "infinities", "large", "zeros", "tiny", "huge", "denormal"} <= set(verified.kinds)

    def wrong(x: torch.Tensor) -> list[torch.Tensor]:
        (right,) = cluster.module(x)
        return [right + 1e-2 * right.abs().max() * (x.imag.abs().median() > 1e3)]

    with pytest.raises(AccuracyError, match="large"):
        thoroughly(case, wrong)


# --- Infinities and NaN -----------------------------------------------------------------------------------------------


def _blind(x: torch.Tensor) -> list[torch.Tensor]:
    """Compute relu as many compilers do: max(NaN, 0) is 0."""
    return [torch.where(x > 0, x, torch.zeros_like(x))]


def test_a_difference_on_nan_alone_is_told_and_no_failure() -> None:
    """Real compilers differ from eager there; the hub then guards the calls."""
    verified = thoroughly(case_cluster("aten.relu.default", call(f(8, 8))), _blind)
    assert verified.is_finite_only
    assert "NaN" not in verified.kinds
    assert "infinities" in verified.kinds
    assert any("guarded" in note and "NaN" in note for note in verified.notes)


def test_an_error_on_infinities_alone_is_told_and_no_failure() -> None:
    """Libraries give up on them; calls with them then run in eager. On usual inputs an error is a failure."""

    def giving_up(when: Callable[[torch.Tensor], bool]) -> Any:
        def run(x: torch.Tensor) -> list[torch.Tensor]:
            if when(x):
                raise RunError("no convergence")
            return [x.relu()]

        return run

    case = case_cluster("aten.relu.default", call(f(8, 8)))
    verified = thoroughly(case, giving_up(lambda x: not bool(x.isfinite().all())))
    assert verified.is_finite_only
    assert any("raises on generated inputs (infinities)" in note for note in verified.notes)
    with pytest.raises(RunError, match="no convergence"):
        thoroughly(case, giving_up(lambda x: not bool(x.any())))


def test_lack_of_memory_on_infinities_is_no_difference() -> None:
    """It says nothing about the executable."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        if not bool(x.isfinite().all()):
            raise RunError("no room") from MemoryError()
        return [x.relu()]

    with pytest.raises(RunError, match="no room"):
        thoroughly(case_cluster("aten.relu.default", call(f(8, 8))), run)


def test_what_is_cut_off_with_leave_is_told_and_guards_nothing() -> None:
    """A backend whose settings accept saturation counts on real inputs; there, it must be right all the same."""
    cluster, inputs = case_cluster("aten.mul.Tensor", call(f(8, 8), f(8, 8)))

    def cut(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [(x * y).nan_to_num(0.0).clamp(-limit, limit)]

    limit = float((inputs[0] * inputs[1]).abs().max())
    verified = verify_thoroughly(cluster, "backend", cut, inputs, None, budget_s=LONG_S, saturates=True)
    assert not verified.is_finite_only
    assert any("cut off" in note and "NaN" in note and "large" in note for note in verified.notes)
    with pytest.raises(AccuracyError):
        thoroughly((cluster, inputs), cut)
    limit /= 2
    with pytest.raises(AccuracyError, match="the real inputs"):
        verify_thoroughly(cluster, "backend", cut, inputs, None, budget_s=LONG_S, saturates=True)


def test_without_time_for_nan_calls_are_guarded_too() -> None:
    """What was not tried is not trusted; usual values are always tried."""
    case = case_cluster("aten.relu.default", call(f(8, 8)))
    verified = thoroughly(case, case[0].module, budget_s=0.0)
    assert verified.kinds == ("normal", "wide")
    assert verified.is_finite_only
    assert {"NaN", "infinities"} <= set(verified.untried)


def test_a_wrong_shape_on_nan_is_a_failure(softmax: Case, faulty: Faulty) -> None:
    """Only numbers may differ there."""
    fault = where_inputs(lambda x: bool(x.isnan().any()), lambda outputs, _: [outputs[0][:1]])
    with pytest.raises(ContractError, match="shape"):
        thoroughly(softmax, faulty(softmax[0], fault))


# --- Form, memory and inputs ------------------------------------------------------------------------------------------

BROKEN: dict[str, tuple[Fault, str]] = {
    "one output too many": (lambda outputs, _: [*outputs, outputs[0]], "2 outputs, 1 expected"),
    "no outputs": (lambda outputs, _: [], "0 outputs, 1 expected"),
    "no tensor": (lambda outputs, _: [3.0], "output softmax_int is a float, no tensor"),
    "shape": (lambda outputs, _: [outputs[0][:4]], "shape"),
    "dtype": (lambda outputs, _: [outputs[0].double()], "dtype torch.float64, torch.float32 expected"),
    "device": (lambda outputs, _: [outputs[0].to("meta")], "device meta, cpu expected"),
    "layout": (lambda outputs, _: [outputs[0].to_sparse()], "layout"),
    "aliased input": (lambda outputs, inputs: [inputs[0].copy_(outputs[0])], "wrote to its input"),
    "input as output": (lambda outputs, inputs: [inputs[0]], "shares memory with an input"),
}


@both
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_contract_is_found(fault: str, check: Any, softmax: Case, faulty: Faulty) -> None:
    """ContractError says what is wrong with which output, and what was expected."""
    change, message = BROKEN[fault]
    with pytest.raises(ContractError, match=message):
        check(softmax, faulty(softmax[0], change))


@both
@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_written_input_is_found_and_put_right(is_hidden: bool, check: Any, softmax: Case, faulty: Faulty) -> None:
    """Even where the write goes past PyTorch's version counter, the input holds its old values afterwards."""
    cluster, inputs = softmax
    before = inputs[0].clone()

    def write(outputs: list[torch.Tensor], given: Sequence[Any]) -> None:
        if is_hidden:
            given[0].numpy()[1, 2] = 7.0
        else:
            given[0][1, 2] = 7.0

    with pytest.raises(ContractError, match="wrote to its input"):
        check((cluster, inputs), faulty(cluster, write))
    assert torch.equal(inputs[0], before)


def test_memory_that_is_given_away_twice_is_found(softmax: Case) -> None:
    """An executable that returns one buffer again and again is rejected."""
    cluster, _ = softmax
    buffer = torch.empty(8, 16)
    with pytest.raises(ContractError, match="is in memory that an earlier call returned"):
        thoroughly(softmax, lambda *inputs: [buffer.copy_(cluster.module(*inputs)[0])])


def test_a_later_write_to_earlier_outputs_is_found(softmax: Case) -> None:
    """Outputs belong to the caller once they are given."""
    cluster, _ = softmax
    given: list[torch.Tensor] = []

    def run(*inputs: Any) -> list[torch.Tensor]:
        for earlier in given:
            earlier.numpy()[0, 0] = 5.0
        given.append(cluster.module(*inputs)[0])
        return [given[-1]]

    with pytest.raises(ContractError, match="a later call wrote to output"):
        thoroughly(softmax, run)


class _Two(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x + 2


@both
def test_outputs_that_share_memory_are_found(check: Any) -> None:
    """A caller who writes to one of two outputs must not change the other."""
    case = whole_cluster(_Two(), (torch.randn(3, 4),))

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        result = x + 1
        return [result, result]

    with pytest.raises(ContractError, match="share memory"):
        check(case, run)


@both
def test_a_weight_handed_out_is_found(check: Any) -> None:
    """A caller who writes to an output must not change the model."""
    case = case_cluster("aten.add.Tensor", call(f(3, 4), f(3, 4)), constants=(1,))
    cluster, (x, *_) = case
    x.zero_()
    weight = next(iter(cluster.constants.values()))
    with pytest.raises(ContractError, match="shares memory with a weight"):
        check(case, lambda _: [weight])


# --- Exceptions -------------------------------------------------------------------------------------------------------


def test_refused_kinds_are_noted(softmax: Case, faulty: Faulty) -> None:
    """InputRefused is an answer, on any kind of generated inputs."""

    def refuse(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
        if not bool(inputs[0].isfinite().all()):
            raise InputRefused("not these")

    verified = thoroughly(softmax, faulty(softmax[0], refuse))
    assert not verified.is_finite_only
    assert "the executable refuses: NaN, infinities" in verified.notes


def test_sizes_that_break_a_guard_of_the_capture_are_left_out() -> None:
    """Seven columns in four chunks are four, and three, six or nine are three: that program is never called with seven."""
    case = case_cluster("aten.chunk.default", call(f(5, 6), 4, 1), dynamic=True)
    cluster, _ = case
    seen: list[int] = []

    def run(x: torch.Tensor, *sizes: int) -> Any:
        seen.append(x.shape[1])
        return [value.clone() for value in cluster.module(x, *sizes)]

    thoroughly(case, run)
    assert set(seen) == {3, 6, 9}


class Remembering(nn.Module):
    """Attention over keys to which one is added, and values."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, new: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        key = torch.cat([key, new], dim=2)
        return nn.functional.scaled_dot_product_attention(query, key, value)


def test_attention_is_tried_with_as_many_keys_as_values_only() -> None:
    """Eager's kernels do not look at their number, which capture has no guard for, and read beyond the shorter ones."""
    pieces = [torch.randn(2, 4, rows, 8) for rows in (3, 5, 1, 6)]
    case = whole_cluster(Remembering(), tuple(pieces), dynamic=True)
    cluster, _ = case
    seen: list[tuple[int, int]] = []

    def run(*inputs: torch.Tensor) -> Any:
        key, _, _, value = inputs  # in the order of their use
        seen.append((key.shape[2] + 1, value.shape[2]))
        return [output.clone() for output in cluster.module(*inputs)]

    thoroughly(case, run)
    assert len(set(seen)) > 1
    assert all(keys == values for keys, values in seen)


def test_exceptions_on_generated_inputs_pass_through(softmax: Case, faulty: Faulty) -> None:
    """An executable that raises on usual numbers where eager does not is unusable."""

    def crash(outputs: list[torch.Tensor], inputs: Sequence[Any]) -> None:
        if not bool(inputs[0].any()):
            raise RunError("cannot")

    with pytest.raises(RunError, match="cannot"):
        thoroughly(softmax, faulty(softmax[0], crash))


def test_inputs_on_which_eager_raises_reach_no_executable() -> None:
    """A mask with more places than there are values for them: eager says so first."""
    case = case_cluster("aten.masked_scatter.default", call(f(4, 4), b(4, 4), f(12)))
    cluster, _ = case
    seen: list[int] = []

    def run(x: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> Any:
        seen.append(int(mask.sum()))
        return cluster.module(x, mask, source)

    verified = thoroughly(case, run)
    assert 0 <= min(seen) <= max(seen) <= 12
    assert "eager raises on: all true" in verified.notes


# --- Budgets ----------------------------------------------------------------------------------------------------------


def test_a_granted_error_is_accepted_on_every_kind() -> None:
    """A bfloat16 program passes with a budget of its error, and fails without one."""
    case = case_cluster("aten.layer_norm.default", call(f(8, 32), [32], f(32), f(32)))
    cluster, _ = case

    def rough(*inputs: Any) -> list[torch.Tensor]:
        rounded = [value.bfloat16().float() for value in inputs]
        return [value.bfloat16().float() for value in cluster.module(*rounded)]

    with pytest.raises(AccuracyError):
        once(case, rough)
    verified = thoroughly(case, rough, accuracy=0.02)
    assert 1e-4 < verified.error < 0.02
    assert {"normal", "large", "all equal"} <= set(verified.kinds)


def test_errors_of_the_hub_are_raised(softmax: Case) -> None:
    """Whatever is found is one of the hub's errors, with the next step."""
    with pytest.raises(HubError, match="hint: "):
        once(softmax, lambda x: [x.softmax(-1) + 1])


def test_a_difference_on_nan_among_the_real_inputs_is_guarded(softmax: Case) -> None:
    """The first call decides nothing: a later process meets usual values, for which the executable is right."""
    cluster, (x,) = softmax

    def without_nan(values: torch.Tensor) -> list[torch.Tensor]:
        return [cluster.module(values)[0].nan_to_num(0.0)]

    holed = x.clone()
    holed[0, 0] = float("nan")
    verified = thoroughly((cluster, (holed,)), without_nan)
    assert verified.is_finite_only
    assert any("the real inputs" in note for note in verified.notes)
    with pytest.raises(AccuracyError):
        once((cluster, (holed,)), without_nan)
    with pytest.raises(AccuracyError):  # nor is it right on usual values
        thoroughly((cluster, (holed,)), lambda values: [without_nan(values)[0] + 0.01])
    with pytest.raises(AccuracyError):
        thoroughly((cluster, (x,)), lambda values: [without_nan(values)[0] + 0.01])
