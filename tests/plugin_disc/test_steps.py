"""Elements that lie two apart or backwards, sums of everything, and short rows: whatever the size, as eager has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from hub.plugin.backend import CompileSettings
from hub.plugin.graph import TensorSpec
from hub.testing.conformance.judge import eager, exact, value_problem
from hub.testing.conformance.sizes import symbols_of, with_sizes
from hub.testing.single import whole_cluster
from hub.toolkit.sizes import python_text, size_of
from plugin_disc.backend import create
from plugin_disc.loops.tasks import TASK_WORK, Tasks, tasks_of
from plugin_disc.runtime import machine_text
from tests.plugin_disc.programs import Wrapped

TWO = CompileSettings(threads=2)
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool]
WIDTHS = [6, 32, 34, 130]


def given(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3)) * 3
    return (
        values.to(dtype) if dtype.is_floating_point else (values > 0).to(dtype) if dtype is torch.bool else values.to(dtype)
    )


def problem(function: Callable[..., object], *inputs: torch.Tensor) -> str:
    """Return what two threads get wrong in a function."""
    cluster, values = whole_cluster(Wrapped(function), inputs)  # pyright: ignore[reportArgumentType]
    return value_problem(create().compile(cluster, TWO)(*values), eager(cluster, values), exact(cluster, values))


def turned(x: torch.Tensor) -> torch.Tensor:
    """Swap neighbours."""
    return torch.stack((x[..., 1::2], x[..., ::2].clone()), -1).flatten(-2)


# --- Two apart, and backwards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_that_take_turns(dtype: torch.dtype) -> None:
    """Every second element is read, and results are written in turns, in registers and in the remaining elements."""
    for columns in WIDTHS:
        assert problem(turned, given(3, columns, dtype)) == "", columns


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_backwards(dtype: torch.dtype) -> None:
    """Rows are read from their end."""
    for columns in WIDTHS:
        assert problem(lambda x: (x.flip(-1) == x, x.flip(0, 1)), given(3, columns, dtype)) == "", columns


def test_an_odd_row_is_not_read_beyond_its_end() -> None:
    """The last element of every second one is the last of the memory."""
    for columns in (31, 65):
        assert problem(lambda x: (x[..., ::2] * 2, x[..., 1::2] * 2), given(1, columns, torch.float32)) == "", columns


def test_every_third_element() -> None:
    """Other steps are gathered."""
    assert problem(lambda x: x[..., ::3] * x[..., 1::3], given(4, 96, torch.float32)) == ""


def test_pairs_are_put_together_in_registers() -> None:
    """No element is read or written by itself where registers are full."""
    cluster, _ = whole_cluster(Wrapped(turned), (given(4, 256, torch.float32),))
    whole, _ = machine_text(cluster, 1, 0).split("scf.if", 1)
    assert whole.count("vector.shuffle") == 4
    assert "gather" not in whole and "scatter" not in whole


# --- Sums of everything -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(256, 300), (1021, 67), (70000,), (16, 3, 32, 64)], ids=str)
def test_totals_that_threads_share(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Sums, extremes and logical totals of everything, whatever divides the sizes."""
    x = given(1, torch.Size(shape).numel(), dtype).view(shape)

    def totals(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(), x.amax(), (x == 0).any(), (x != 3).all(), x.flatten().amin()

    assert problem(totals, x) == ""


def test_statistics_that_threads_share() -> None:
    """Totals of what is computed from other totals, and a result that is read elsewhere, too."""

    def statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        power = x.exp()
        return x.std(), (x - x.mean()).pow(2).mean(), power.sum(), power / power.sum(), x / x.norm()

    assert problem(statistics, given(128, 1000, torch.float32)) == ""


# --- Short rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 5, 16, 64, 65])
def test_functions_of_the_sums_of_short_rows(columns: int) -> None:
    """They run in all lanes, in loops of their own, and are eager's."""

    def gated(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x.sum(-1)
        return functional.silu(total), x * total.exp().unsqueeze(-1), x.softmax(-1)

    assert problem(gated, given(37, columns, torch.float32).view(37, 1, columns).expand(37, 3, columns)) == ""


# --- Tasks ------------------------------------------------------------------------------------------------------------


def test_small_steps_share_a_task() -> None:
    """Loops inside a task are those from the innermost on that are worth one, the last of them in blocks."""
    assert tasks_of([(0, 8), (1, 100), (2, 4)], 64) == Tasks(((0, 8), (1, 7)), ((1, 100), 16), ((2, 4),))
    assert tasks_of([(0, 8), (1, 4)], 16) == Tasks((), None, ((0, 8), (1, 4)))


def test_large_steps_are_a_task_each() -> None:
    """Nothing runs inside a task but one step."""
    loops = [(0, 8), (1, 100)]
    assert tasks_of(loops, TASK_WORK) == Tasks(tuple(loops), None, ())


@pytest.mark.parametrize(("columns", "steps"), [(0, TASK_WORK), (1, TASK_WORK // 2), (63, 64), (TASK_WORK, 1)])
def test_steps_of_symbolic_size_share_a_task_when_they_are_small(columns: int, steps: int) -> None:
    """How many do is known at the call; there may be no element in any."""
    cluster, _ = whole_cluster(Wrapped(lambda x: x * 2), (torch.randn(4, 3),), dynamic=True)
    spec = cluster.inputs[0]
    size = size_of(spec.shape[1]) if isinstance(spec, TensorSpec) else None
    tasks = tasks_of([(0, 8), (1, 100)], size)
    assert tasks.block is not None and tasks.inside == ()
    assert eval(python_text(tasks.block[1], {size: str(columns)})) == steps
    assert eval(python_text(tasks.count, {size: str(columns)})) == 8 * -(-100 // steps)
    outer = tasks_of([(0, 8), (1, 100)], size, -2)
    assert outer.block is not None and outer.block[0] == (0, 8) and outer.numbered[1] == (1, 100)
    assert eval(python_text(outer.count, {size: str(columns)})) == 100 * -(-8 // steps)


@pytest.mark.parametrize("rows", [1, 34, 35, 1000])
def test_every_row_is_in_one_task(rows: int) -> None:
    """Blocks of rows cover them all, also where the last one is not full, for fixed and for symbolic sizes."""

    def rows_and_heads(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(-1) * 2, x.softmax(-1), x.transpose(0, 1).contiguous() + 1

    x = torch.randn(rows, 3, 40)
    assert problem(rows_and_heads, x) == ""
    cluster, inputs = whole_cluster(Wrapped(rows_and_heads), (torch.randn(6, 3, 40),), dynamic=True)
    first, *others = symbols_of(cluster)
    values = with_sizes(cluster, inputs, {first: rows, **dict.fromkeys(others, 5)})
    executable = create().compile(cluster, TWO)
    assert value_problem(executable(*values), eager(cluster, values), exact(cluster, values)) == ""
