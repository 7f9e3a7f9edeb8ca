"""Whole models by one backend alone: what TVM, XLA and IREE run in eager. With `benchmarks.forced`, at full size."""

from __future__ import annotations

import pytest
import torch

from benchmarks.forced import BACKENDS, MODELS, difference, forced, row_of

MAX_LEFT = 0.02
"""Share of a model's nodes that may run in eager."""
MAX_OFF = 1e-5
"""Largest difference from eager, relative to the largest value: 80 roundings of float32, which products and norms of two
layers add up to; what is dropped or wrong is off by 1e-3 and more."""
NEEDED = {"tvm": "tvm", "xla": "jaxlib", "iree": "iree.compiler"}

pytestmark = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`:UserWarning")


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forced_backend_takes_nearly_all_of_a_model(backend: str, model: str) -> None:
    """At most 2 % of the nodes run in eager, each for a reason; nothing fails, and the result is eager's."""
    pytest.importorskip(NEEDED[backend])
    found = forced(model, backend, small=True)
    assert found.taken > 0
    assert found.left_share <= MAX_LEFT, found
    assert bool(found.reasons) == bool(found.left), found
    assert found.problems == ()
    assert found.difference < MAX_OFF


def test_nodes_left_to_eager_are_told_with_the_reason() -> None:
    """A table's row counts them and says why, and a difference is relative to the largest value of its tensor."""
    pytest.importorskip("jaxlib")
    found = forced("lstm", "xla", small=True)
    assert (found.left, found.left_share, found.clusters) == (0, 0.0, 1)
    assert row_of(found).startswith(f"| lstm | xla | {found.taken} | 0 | 1 | ")
    assert difference(torch.tensor([100.0, 1.0]), torch.tensor([100.0, 2.0])) == pytest.approx(0.01)
