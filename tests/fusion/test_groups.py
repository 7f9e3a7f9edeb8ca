"""What is computed in one nest of loops, what lies in memory, and which loops run along the lanes."""

from __future__ import annotations

from hub.toolkit.builders import (
    broadcast,
    cast,
    joined,
    matrix_product,
    padded,
    permuted,
    pointwise,
    reduced,
    reshaped,
    sliced,
)
from hub.toolkit.groups import Group, scheduled
from hub.toolkit.nest import nest_of, phases_of
from hub.toolkit.rules.layers import normalised
from hub.toolkit.rules.reductions import softmax
from hub.toolkit.tensors import Product, Source, Tensor


def source(*shape: int, dtype: str = "f32") -> Source:
    return Source(tuple(shape), dtype, "x")


def groups(*outputs: Tensor) -> list[Group]:
    """Return the stages of some tensors, all of which are loops."""
    stages = scheduled(outputs).stages
    assert all(isinstance(stage, Group) for stage in stages)
    return [stage for stage in stages if isinstance(stage, Group)]


def doubled(tensor: Tensor) -> Tensor:
    return pointwise("add", tensor, tensor)


def test_a_chain_is_one_nest() -> None:
    """Pointwise functions of pointwise functions run together, and only the last one is stored."""
    result = doubled(doubled(doubled(source(4, 8))))
    (group,) = groups(result)
    assert [store.member for store in group.stores] == [result]


def test_softmax_is_one_nest_of_three_phases() -> None:
    """The extreme, the sum and the quotient run over one row after the other, without memory in between."""
    result = softmax(source(4, 100), 1)
    (group,) = groups(result)
    assert group.reduced == {1}
    assert phases_of(group)[result] == 2
    assert [store.member for store in group.stores] == [result]


def test_a_sum_and_its_norm_are_one_nest() -> None:
    """Residual and layer norm run together, with the residual as a second output."""
    total = doubled(source(2, 5, 64))
    result, _, _ = normalised(total, (2,), 1e-5)
    (group,) = groups(total, result)
    assert {store.member for store in group.stores} == {total, result}


def test_another_reduction_is_another_nest() -> None:
    """A reduction along other dims needs all of what comes before it."""
    rows = reduced("sum", doubled(source(4, 8)), (1,))
    columns = reduced("sum", pointwise("mul", source(4, 8), rows), (0,))
    assert len(groups(columns)) == 2


def test_a_transposed_reader_is_another_nest() -> None:
    """What reads an element other than the current one waits until all are in memory."""
    first = doubled(source(8, 8))
    result = pointwise("add", first, permuted(first, (1, 0)))
    stages = groups(result)
    assert len(stages) == 2
    assert [store.member for store in stages[0].stores] == [first]


def test_a_reader_in_another_order_of_dims_runs_along() -> None:
    """What reads the current element runs in the same loops, regardless of the order of its own dims."""
    first = doubled(source(8, 4, 16))
    result = doubled(permuted(first, (1, 0, 2)))
    (group,) = groups(first, result)
    assert group.members[result] == (1, 0, 2)


def test_a_reader_of_a_part_is_another_nest() -> None:
    """A slice from the beginning has the indices of the whole, but not its size."""
    first = doubled(source(4, 16))
    assert len(groups(doubled(sliced(first, 1, 0, 8)))) == 2


def test_views_of_inputs_cost_nothing() -> None:
    """Slices, transposes and broadcasts of what lies in memory are read in place."""
    view = broadcast(sliced(permuted(source(8, 6), (1, 0)), 0, 1, 1), (3, 5, 8))
    assert len(groups(doubled(view))) == 1


def test_cutting_a_dim_is_a_view_and_joining_is_not() -> None:
    """[6, 4] as [2, 3, 4] is read in place; as [24] it has to lie in memory."""
    first = doubled(source(6, 4))
    assert len(groups(doubled(reshaped(first, (2, 3, 4))))) == 2  # other loops, but no copy
    stages = groups(doubled(reshaped(first, (24,))))
    assert [store.member for store in stages[0].stores] == [first]


def test_pieces_are_written_where_they_belong() -> None:
    """What is joined is computed right into the memory of the whole."""
    one, other = doubled(source(2, 3)), doubled(source(2, 5))
    whole = joined([one, other], 1)
    stages = groups(whole)
    assert [[(store.into, store.offsets) for store in stage.stores] for stage in stages] == [
        [(whole, (0, 0))],
        [(whole, (0, 3))],
    ]


def test_padding_is_written_before_what_it_surrounds() -> None:
    """The constant comes first, so that the elements are what stays."""
    stages = groups(padded(doubled(source(4)), (1,), (1,), 0.0))
    assert stages[-1].stores[0].offsets == (1,)
    assert len(stages) == 3 or stages[0].stores[0].offsets == (0,)


def test_products_read_transposed_matrices_in_place() -> None:
    """A transposed factor is no copy; one without rows or columns in one piece is."""
    turned = permuted(source(8, 4), (1, 0))
    assert [type(stage) for stage in scheduled([matrix_product(source(3, 4), turned)]).stages] == [Product]
    spread = sliced(source(4, 16), 1, 0, 8, 2)
    assert [type(stage) for stage in scheduled([matrix_product(source(3, 4), spread)]).stages] == [Group, Product]


def test_packed_loops_are_merged() -> None:
    """Loops over packed memory are one long loop."""
    (group,) = groups(doubled(source(4, 5, 6)))
    assert nest_of(group).merged == {0, 1}
    assert nest_of(group).sizes[2] == 120


def test_lanes_run_along_memory() -> None:
    """Sums of columns run along rows, and sums of rows along themselves."""
    (columns,) = groups(reduced("sum", source(100, 64), (0,)))
    (rows,) = groups(reduced("sum", source(64, 100), (1,)))
    assert nest_of(columns).lane == 1
    assert nest_of(rows).lane == 1


def test_a_cast_of_a_constant_is_a_constant() -> None:
    """Nothing is left to do at run time."""
    from hub.toolkit.builders import fill
    from hub.toolkit.tensors import Fill

    found = cast(fill(2, "i64"), "f32")
    assert isinstance(found, Fill)
    assert found.value == 2.0


# --- Waiting for readers ----------------------------------------------------------------------------------------------


def test_branches_that_meet_are_one_nest() -> None:
    """What is computed from other memory waits for the function that reads both, and is not stored."""
    left, right = (pointwise("tanh", source(4, 8)) for _ in range(2))
    result = pointwise("mul", left, right)
    (group,) = groups(result)
    assert list(group.members) == [left, right, result]
    assert [store.member for store in group.stores] == [result]


def test_a_cheap_cast_of_few_elements_is_computed_in_each_row() -> None:
    """It would cost more to store it and read it again."""
    weight = cast(source(8, dtype="bf16"), "f32")
    result = pointwise("mul", source(4, 8), broadcast(weight, (4, 8)))
    (group,) = groups(result)
    assert group.members[weight] == (1,)


def test_a_dear_function_is_not_computed_again_in_each_row() -> None:
    """Its results are stored once."""
    weight = pointwise("exp", source(8))
    result = pointwise("mul", source(4, 8), broadcast(weight, (4, 8)))
    first, second = groups(result)
    assert [store.member for store in first.stores] == [weight]
    assert weight not in second.members


def test_what_is_read_in_two_orders_is_computed_once() -> None:
    """A matrix plus its transpose."""
    square = pointwise("sub", source(8, 8), source(8, 8))
    result = pointwise("add", square, permuted(square, (1, 0)))
    first, second = groups(result)
    assert list(first.members) == [square]
    assert list(second.members) == [result]


def test_what_two_groups_read_is_computed_in_both_only_where_that_saves_memory() -> None:
    """A sum of two tensors costs two reads, its result one."""
    total = pointwise("add", source(4, 8), source(4, 8))
    rows, columns = reduced("sum", total, (1,)), reduced("sum", total, (0,))
    assert sum(total in group.members for group in groups(rows, columns)) == 1
    half = cast(source(4, 8, dtype="bf16"), "f32")
    rows, columns = reduced("sum", half, (1,)), reduced("sum", half, (0,))
    assert [half in group.members for group in groups(rows, columns)] == [True, True]


def test_long_chains_do_not_wait_for_ever() -> None:
    """Thousands of functions, one behind the other, are placed without recursion into each."""
    tensor: Tensor = source(4, 8)
    for _ in range(3000):
        tensor = doubled(tensor)
    (group,) = groups(tensor)
    assert len(group.members) == 3000


def test_expensive_functions_of_short_rows_are_apart() -> None:
    """Their values fill registers of their own; cheap functions, and those of long rows, stay in the rows."""
    for width, function, count in ((16, "exp", 2), (16, "neg", 1), (128, "exp", 1)):
        result = pointwise(function, reduced("sum", source(8, width), (1,)))
        assert len(scheduled((result,), narrow=64).stages) == count


def test_pairs_of_rows_wait_for_all_rows() -> None:
    """Inside the loop over rows, the second one of a pair may not have been computed."""
    sums = reduced("sum", source(6, 1, 20), (2,))
    pairs = pointwise("add", broadcast(sums, (6, 6, 1)), broadcast(permuted(sums, (1, 0, 2)), (6, 6, 1)))
    first, second = groups(pairs)
    assert [store.member for store in first.stores] == [sums]
    assert [store.member for store in second.stores] == [pairs]
