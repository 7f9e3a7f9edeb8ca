"""The operator samples keep their promises: they run in eager, form clusters, and the check tells right from wrong."""

from __future__ import annotations

import pytest
import torch

from hub.testing.operators import SAMPLES, Reference, case_cluster, check_close, expected, overload_of, references
from hub.testing.operators.sample import call, f, f64, i64

GROUPS = [sorted(SAMPLES)[start::8] for start in range(8)]
"""Every overload, in eight parts, so that a failure is found quickly and collection stays cheap."""

LAYOUTS = {
    "contiguous": (f(3, 4), (4, 1)),
    "transposed": (f(4, 3).T, (1, 3)),
    "strided": (f(3, 4).strided, (9, 2)),
    "expanded": (f(3, 4).expanded, (0, 1)),
}


@pytest.mark.parametrize("names", GROUPS, ids=range(8))
def test_every_sample_runs_and_agrees_with_itself(names: list[str]) -> None:
    """Eager runs each sample, twice with equal results, within the tolerance that its own float64 reference allows."""
    for name in names:
        assert SAMPLES[name], f"{name} has no samples"
        for sample in SAMPLES[name]:
            first, second = expected(name, sample), expected(name, sample)
            check_close(first, second, references(name, sample), has_values=sample.has_values)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("names", GROUPS, ids=range(8))
def test_every_sample_makes_a_cluster_that_computes_it(names: list[str], dynamic: bool) -> None:
    """The one-operator cluster of a sample returns what the call returns, and declares shapes and dtypes that it keeps."""
    for name in names:
        for sample in SAMPLES[name][:: 3 if dynamic else 1]:
            cluster, inputs = case_cluster(name, sample, dynamic=dynamic)
            outputs = cluster.module(*inputs)
            wanted = expected(name, sample)
            check_close(outputs, wanted, references(name, sample), has_values=sample.has_values)
            assert [output.dtype for output in outputs] == [spec.dtype for spec in cluster.outputs]
            assert [output.dim() for output in outputs] == [len(spec.shape) for spec in cluster.outputs]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_as_named(layout: str) -> None:
    """A described tensor has the strides of its description."""
    made, strides = LAYOUTS[layout]
    (tensor,), _ = call(made).build()
    assert tensor.shape == (3, 4)
    assert tensor.stride() == strides


def test_samples_are_seeded() -> None:
    """Building a sample twice gives equal values in different memory."""
    sample = call(f(3, 4))
    (first,), _ = sample.build()
    (second,), _ = sample.build()
    assert torch.equal(first, second)
    assert first.data_ptr() != second.data_ptr()


def test_sizes_become_symbols_and_inputs() -> None:
    """In a dynamic case sizes of at least 2 are symbols, and an integer of the call that equals one is an input."""
    cluster, inputs = case_cluster("aten.expand.default", call(f(1, 3), [5, 3]), dynamic=True)
    assert cluster.is_dynamic
    assert [type(value) for value in inputs] == [torch.Tensor, int]
    assert inputs[1] == 3


def test_sizes_that_an_operator_fixes_stay_fixed() -> None:
    """A size for which the operator has one fixed value, such as a normalised shape, is static in a dynamic case."""
    cluster, _ = case_cluster("aten.layer_norm.default", call(f(3, 7), [7], f(7), f(7)), dynamic=True)
    rows, columns = cluster.inputs[0].shape  # pyright: ignore
    assert isinstance(rows, torch.SymInt)
    assert int(columns) == 7


def test_chosen_tensors_become_weights() -> None:
    """Tensors named as constants are weights of the cluster and no inputs."""
    cluster, inputs = case_cluster("aten.linear.default", call(f(2, 4), f(3, 4), f(3)), constants=(1, 2))
    assert len(inputs) == 1
    assert [tuple(value.shape) for value in cluster.constants.values()] == [(3, 4), (3,)]


def test_only_the_read_outputs_leave_the_cluster() -> None:
    """A sample that reads some outputs of a tuple has a cluster with these outputs only."""
    cluster, _ = case_cluster("aten.native_layer_norm.default", call(f(2, 8), [8], None, None, 1e-5).reads(0))
    assert [tuple(spec.shape) for spec in cluster.outputs] == [(2, 8)]


def _swap(values: torch.Tensor) -> torch.Tensor:
    return values.flip(0)


WRONG = {
    "shape": lambda right: right[:1],
    "dtype": lambda right: right.double(),
    "one ULP too many": lambda right: right * (1 + 1e-4),
    "order": _swap,
    "a NaN": lambda right: torch.where(right == right.max(), torch.nan, right),
    "an infinity": lambda right: torch.where(right == right.max(), torch.inf, right),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_results_are_found(fault: str) -> None:
    """The check refuses a wrong shape, dtype, value, order, NaN or infinity, and names the output."""
    sample = call(f(4, 5), [1])
    right = expected("aten.sum.dim_IntList", sample)
    with pytest.raises(AssertionError, match="output 0"):
        check_close([WRONG[fault](right[0])], right, references("aten.sum.dim_IntList", sample))


def test_moved_inputs_leave_room_in_every_dtype() -> None:
    """Float64 inputs are rounded too, and integers of which floats are computed count as float32."""
    for sample in (call(f64(4, 5)), call(i64(4, 5))):
        (reference,) = references("aten.sigmoid.default", sample)
        assert reference is not None and reference.noise > 0
    assert references("aten.add.Tensor", call(i64(3), i64(3)))[0] is not None


def test_a_missing_output_is_found() -> None:
    """The check refuses another number of outputs."""
    with pytest.raises(AssertionError, match="0 outputs, 1 expected"):
        check_close([], [torch.ones(1)])


def test_integers_are_compared_exactly() -> None:
    """An integer that is off by one is wrong, and the message gives the index and both values."""
    sample = call(i64(3, 4), i64(4))
    right = expected("aten.add.Tensor", sample)[0]
    wrong = right.clone()
    wrong[2, 1] += 1
    with pytest.raises(AssertionError, match=rf"at \[2, 1\] got {wrong[2, 1]}, expected {right[2, 1]}"):
        check_close([wrong], [right])


def test_another_order_of_addition_is_right() -> None:
    """A sum in another order is as right as eager's, even where the terms cancel."""
    torch.manual_seed(0)
    terms = torch.randn(1000)
    reference = Reference(terms.double().sum(), noise=float(terms.abs().max()) * 1000**0.5 * torch.finfo(torch.float32).eps)
    check_close([terms.flip(0).cumsum(0)[-1]], [terms.sum()], [reference])


def test_overloads_are_found_by_name() -> None:
    """An overload's name returns the operator that prints as this name."""
    assert str(overload_of("aten.add.Tensor")) == "aten.add.Tensor"
