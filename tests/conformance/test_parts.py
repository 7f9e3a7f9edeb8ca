"""The parts that checks are made of: layouts, sizes, programs, growth, threads."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from hub.testing.conformance.cases import Case, is_taken, joined, joined_answer, resized, small_cases, spread_of
from hub.testing.conformance.elsewhere import packed, unpacked
from hub.testing.conformance.judge import eager, exact, same_bits, value_problem
from hub.testing.conformance.layouts import LAYOUTS, as_they_are, differ_in_layout, expanded, laid_out
from hub.testing.conformance.programs import PROGRAMS, is_varied, other_inputs, program_of, single
from hub.testing.conformance.resources import growth
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.conformance.threads import at_once
from hub.testing.conformance.weights import distance
from hub.testing.operators import SAMPLES
from hub.testing.operators.sample import call, f, lit

SHAPES = ((), (4,), (3, 4), (2, 3, 4), (2, 3, 4, 5), (0, 3), (1, 4), (3, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_keep_values(layout: str, dtype: torch.dtype) -> None:
    """Only the place in memory changes, and no memory is shared with the original."""
    for shape in SHAPES:
        value = torch.randn(shape).to(dtype)
        other = LAYOUTS[layout](value)
        assert other.shape == value.shape and torch.equal(other, value)
        if value.numel():
            assert other.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


def test_layouts_differ() -> None:
    """On an image, every layout is another one."""
    image = (torch.randn(2, 3, 4, 5),)
    assert [name for name, layout in LAYOUTS.items() if not differ_in_layout(laid_out(image, layout), image)] == []


def test_copies_lie_alike() -> None:
    """A copy has the strides, the gaps and the offset of the original, in memory of its own."""
    for value in (torch.randn(4, 6)[1:, ::2], torch.randn(3, 1).expand(3, 4), torch.randn(2, 3).mT, torch.empty(0, 3)):
        copy = as_they_are(value)
        assert torch.equal(copy, value)
        assert copy.stride() == value.stride() and copy.storage_offset() == value.storage_offset()
        assert not value.numel() or copy.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


def test_expanded_has_a_stride_of_0() -> None:
    """The first dim of several entries repeats its first one."""
    value = expanded(torch.arange(6.0).reshape(1, 3, 2))
    assert value.stride()[1] == 0
    assert value.tolist() == [[[0.0, 1.0]] * 3]


def test_samples_are_resized() -> None:
    """The first size changes wherever it stands first; literal values have no other size."""
    small = resized(call(f(3, 4), f(3, 2), f(4)), 0)
    assert small is not None
    assert [made.shape for made in small.arguments] == [(0, 4), (0, 2), (4,)]
    assert resized(call(lit(1.0, 2.0)), 1) is None
    assert resized(call(f(1, 4)), 1) is None


def test_small_cases_are_those_that_eager_takes() -> None:
    """A maximum over no element is none; a sum over none is."""
    maxima = [str(case) for case in small_cases(Case("aten.max.default", call(f(3))))]
    sums = [str(case) for case in small_cases(Case("aten.sum.default", call(f(3))))]
    assert len(maxima) == 1 and len(sums) == 2


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run_and_are_found_by_name(name: str, dynamic: bool) -> None:
    """Each draws the same cluster again, dynamic in one symbol, and other weights where it has any."""
    program = program_of(name)
    cluster, inputs = program.draw(dynamic=dynamic)
    again, _ = program.draw(dynamic=dynamic)
    other, same_inputs = program.draw(dynamic=dynamic, seed=1)
    outputs = eager(cluster, inputs)
    assert cluster.digest == again.digest
    assert same_bits(inputs, same_inputs)
    assert [spec.dtype for spec in cluster.outputs] == [output.dtype for output in outputs]
    assert len(symbols_of(cluster)) == dynamic
    assert value_problem(outputs, outputs, exact(cluster, inputs)) == ""
    if cluster.constants:
        assert cluster.digest != other.digest and cluster.structure_digest == other.structure_digest
        assert distance(eager(cluster, inputs), eager(other, inputs)) > 0


def test_sizes_change_together() -> None:
    """Every input that has the symbol gets the new size."""
    cluster, inputs = PROGRAMS["elementwise"].draw(dynamic=True)
    for size in (0, 1, 9):
        others = with_sizes(cluster, inputs, dict.fromkeys(symbols_of(cluster), size))
        assert [tuple(value.shape) for value in others] == [(size, 6)] * 2
        assert [len(output) for output in eager(cluster, others)] == [size] * 2


def test_a_single_operator_is_a_program() -> None:
    """Its tensors after the first are weights, which a seed changes; others values are other inputs."""
    position = next(index for index, sample in enumerate(SAMPLES["aten.linear.default"]) if sample.has_values)
    program = single("aten.linear.default", position)
    assert program_of(program.name) == program
    assert is_varied(program.name)
    (first, inputs), (second, _) = program.draw(), program.draw(seed=1)
    assert len(inputs) == 1 and first.constants
    assert distance(eager(first, inputs), eager(second, inputs)) > 0
    assert not same_bits(inputs, other_inputs(inputs, 1))


def test_groups_answer_as_their_calls_do() -> None:
    """Several calls in one cluster give what each gives alone, and no view of an input."""
    cases = spread_of("shapes")
    cluster, inputs = joined(cases)
    wanted, references = joined_answer(cases)
    outputs = eager(cluster, inputs)
    assert value_problem(outputs, wanted, references) == ""
    assert len(outputs) > len(cases) / 2


def test_a_call_that_ends_eager_is_not_tried() -> None:
    """Eager divides by 0 in integers there and would end the process; in floats the call is one as any other."""
    overload = "aten.smooth_l1_loss_backward.default"
    floats = call(f(2), f(2), f(2), 1, 0.5)
    whole = call(*(lit(1, 2, dtype=torch.int64) for _ in range(3)), 1, 0.5)
    assert is_taken(overload, floats)
    assert not is_taken(overload, whole)


def test_a_program_may_be_off_by_what_its_inputs_roundings_make() -> None:
    """Where a difference of large numbers is small, a rounding of them moves it far: eager may be exact there by luck."""
    cluster, _ = PROGRAMS["elementwise"].draw(seed=0)
    near, far = torch.full((5, 6), 1000.0), torch.full((5, 6), -999.0)
    wanted = eager(cluster, (near, far))
    references = exact(cluster, (near, far))
    step = torch.finfo(torch.float32).eps * 1000
    noise = max(reference.noise for reference in references if reference is not None)
    assert step / 8 < noise < 2 * step * 1.5
    off = tuple(value + step / 16 for value in wanted)
    assert value_problem(off, wanted, references) == ""
    assert value_problem(tuple(value + 64 * step for value in wanted), wanted, references)


def test_bits_are_compared() -> None:
    """NaN equals itself, -0.0 differs from 0.0."""
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bits([nan], [nan.clone()])
    assert not same_bits([torch.tensor(0.0)], [torch.tensor(-0.0)])
    assert not same_bits([torch.zeros(2)], [torch.zeros(2, 1)])
    assert not same_bits([torch.zeros(2)], [])


def test_tensors_travel_as_bytes() -> None:
    """Any dtype and shape arrives as it was."""
    tensors = [torch.randn(2, 3).bfloat16(), torch.zeros(0, 4), torch.tensor(True), torch.randn(4, 3).T]
    assert same_bits(unpacked(packed(tensors)), tensors)


def test_growth_is_what_never_stops() -> None:
    """A pool that is filled once is no leak; a file left open each time is one, and so is a thread."""
    opened: list[int] = []
    threads: list[threading.Event] = []

    def fill_once() -> None:
        if not opened:
            opened.append(os.open(os.devnull, os.O_RDONLY))

    def leave_open() -> None:
        opened.append(os.open(os.devnull, os.O_RDONLY))

    def leave_running() -> None:
        threads.append(threading.Event())
        threading.Thread(target=threads[-1].wait, daemon=True).start()

    try:
        assert list(growth(fill_once, 3, "calls")) == []
        assert [problem.split(":")[0] for problem in growth(leave_open, 3, "calls")] == ["open files grow"]
        assert [problem.split(":")[0] for problem in growth(leave_running, 3, "calls")] == ["open threads grow"]
    finally:
        for number in opened:
            os.close(number)
        for event in threads:
            event.set()


def test_jobs_run_at_once_and_say_what_is_wrong() -> None:
    """All start before any ends; exceptions of any kind are reported."""
    gate = threading.Barrier(3, timeout=20)

    def fine() -> str:
        gate.wait()
        return ""

    def odd() -> str:
        gate.wait()
        raise SystemExit(2)

    def wrong() -> str:
        gate.wait()
        return "wrong"

    assert sorted(at_once([fine, odd, wrong])) == ["SystemExit: 2", "wrong"]
