"""NaN that arises inside a cluster of a library whose kernels lose it, OpenVINO and ONNX Runtime, and none is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plugin_onnxruntime.backend import create as create_onnxruntime
from plugin_onnxruntime.lower import lower
from plugin_openvino.backend import create
from torch import Tensor, nn
from torch.nn import functional

import hub
from hub.errors import CompileError, InputRefused
from hub.testing.single import compile_and_run, run, whole_cluster
from hub.toolkit.intervals import Hazards, constants_of
from tests.functions import Of

NUMBERS = torch.tensor([[1.0, 2.0, 0.0, 3.0], [1.0, -2.0, 0.5, 3.0]])
"""Zero and a negative number beside ordinary ones."""
INFINITE = float("inf")


def attention(x: Tensor) -> Tensor:
    heads = x.log()[:, None, None]
    return functional.scaled_dot_product_attention(heads, heads, heads)


LOST: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax of infinity": lambda x: torch.softmax(-2 * torch.log(x.abs()), -1),
    "log softmax of infinity": lambda x: torch.log_softmax(1 / x, -1),
    "relu of 0/0": lambda x: torch.relu((x - x) / (x * 0)),
    "relu of a root": lambda x: torch.relu(torch.sqrt(x)),
    "relu of a power": lambda x: torch.relu(x**0.5 + x**2),
    "relu6 of a logarithm": lambda x: functional.relu6(torch.log(x)),
    "hardtanh of an arcsine": lambda x: functional.hardtanh(torch.asin(x)),
    "relu of a difference of exponentials": lambda x: torch.relu(torch.exp(x * 50) - torch.exp(x * 51)),
    "max pool of negative infinity": lambda x: functional.max_pool1d(torch.log(x * 0)[None], 2),
    "max pool of written infinity": lambda x: functional.max_pool1d(x.masked_fill(x > -9, -INFINITE)[None], 2),
    "attention": attention,
    "behind a product": lambda x: torch.relu(torch.log(x) @ torch.ones(4, 4)),
}
"""Functions of `NUMBERS` whose NaN OpenVINO's kernels lose."""

KEPT: dict[str, Callable[[Tensor], Tensor]] = {
    "rms norm": lambda x: torch.relu(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "product by itself": lambda x: torch.relu(x / (x * x + 1e-3).sqrt()),
    "standardised": lambda x: torch.relu((x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)),
    "normalised": lambda x: torch.relu(functional.normalize(x, dim=-1)),
    "softmax by hand": lambda x: torch.relu((e := torch.exp(x - x.amax(-1, keepdim=True))) / e.sum(-1, keepdim=True)),
    "softmax by max": lambda x: torch.relu(torch.exp(x - x.max(-1, keepdim=True).values)),
    "sigmoid by hand": lambda x: torch.relu(1 / (1 + torch.exp(-x.abs()))),
    "clamped logarithm": lambda x: torch.relu(torch.log(torch.clamp(x, min=1e-5))),
    "masked softmax": lambda x: torch.softmax((x / 2.0).masked_fill(x > 1, -INFINITE), -1),
    "whole power": lambda x: torch.relu(x**3 - x**2),
    "a constant's quotient": lambda x: torch.relu(x / torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "cleaned": lambda x: torch.relu(torch.nan_to_num(torch.log(x))),
}
"""Functions without NaN for any ordinary numbers."""


def executable_of(function: Callable[..., Any], x: Tensor) -> tuple[Any, Any]:
    cluster, values = whole_cluster(Of(function), (x,))
    return cluster, compile_and_run(create(), cluster, values)[0]


@pytest.mark.parametrize("name", LOST)
def test_a_call_whose_nan_would_be_lost_is_refused(name: str) -> None:
    """The hub computes such a call in eager. Other calls are OpenVINO's."""
    ordinary = NUMBERS.abs() / 10 + 0.1
    cluster, executable = executable_of(LOST[name], ordinary)
    if name not in ("relu of 0/0", "max pool of negative infinity", "max pool of written infinity"):  # never ordinary
        torch.testing.assert_close(run(executable, cluster, (ordinary,))[0], LOST[name](ordinary))
    with pytest.raises(InputRefused, match="NaN or infinity"):
        executable(NUMBERS)


@pytest.mark.parametrize("name", KEPT)
def test_ordinary_models_get_no_alarm(name: str) -> None:
    """It would cost them a pass over memory: the graph shows that no NaN arises."""
    cluster, _ = whole_cluster(Of(KEPT[name]), (NUMBERS,))
    hazards = Hazards(constants_of(cluster.module))
    for node in cluster.nodes:
        hazards.add(node)
    last = cluster.nodes[-1]
    assert not hazards.may_hold_nan(last)
    assert torch.isfinite(KEPT[name](NUMBERS)).all()


def test_a_value_that_is_left_out_costs_no_call() -> None:
    """A logarithm of 0 that a `where` leaves out raises no alarm."""
    guarded = lambda x: torch.relu(torch.where(x > 0, torch.log(x), 0.0))  # noqa: E731
    cluster, executable = executable_of(guarded, NUMBERS)
    torch.testing.assert_close(run(executable, cluster, (NUMBERS,))[0], guarded(NUMBERS))


def test_the_hubs_answer_is_eagers() -> None:
    """A compiled function keeps the NaN that arises in it, and OpenVINO stays in use."""
    function = LOST["softmax of infinity"]
    call = torch.compile(function, backend="hub", options={"tune": "off", "backends": ["openvino"]})
    ordinary = NUMBERS.abs() + 1
    torch.testing.assert_close(call(ordinary), function(ordinary))
    with pytest.warns(hub.HubWarning, match="for such calls: InputRefused: NaN or infinity arises"):
        torch.testing.assert_close(call(NUMBERS), function(NUMBERS), equal_nan=True)
    torch.testing.assert_close(call(ordinary), function(ordinary))
    assert [plan.backends for plan in hub.plans(call)] == [("openvino",)]


# --- ONNX Runtime -----------------------------------------------------------------------------------------------------


def pooled(x: Tensor) -> Tensor:
    return functional.max_pool1d(x[None], 2, padding=1)


POOLED: dict[str, Callable[[Tensor], Tensor]] = {
    "NaN": lambda x: pooled(torch.log(x) + 1),
    "written infinity": lambda x: pooled(x.masked_fill(x > -9, -INFINITE)),
    "infinity": lambda x: pooled(1 / x),
    "ordinary": lambda x: pooled(torch.relu(functional.normalize(x, dim=-1))),
}


@pytest.mark.parametrize("name", POOLED)
def test_onnxruntimes_pools_keep_what_arises(name: str) -> None:
    """Pooling itself begins with the lowest number, which no NaN and no negative infinity replaces."""
    cluster, values = whole_cluster(Of(POOLED[name]), (NUMBERS,))
    result = compile_and_run(create_onnxruntime(), cluster, values)[1][0]
    torch.testing.assert_close(result, POOLED[name](NUMBERS), equal_nan=True)


def test_only_pools_behind_hazards_are_paid_for() -> None:
    """Two more pools find NaN and negative infinity."""
    counts = {name: str(lower(whole_cluster(Of(POOLED[name]), (NUMBERS,))[0]).model).count('"MaxPool"') for name in POOLED}
    assert counts == {"NaN": 3, "written infinity": 3, "infinity": 3, "ordinary": 1}


def test_onnxruntime_refuses_a_recurrent_layer_behind_a_logarithm() -> None:
    """It clips its sums, so that NaN and infinity are lost."""
    layer = nn.GRU(4, 4)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        cluster, values = whole_cluster(Of(lambda x: layer(torch.log(x)[:, None])[0]), (NUMBERS,))
    with pytest.raises(CompileError, match="may arise before GRU"):
        compile_and_run(create_onnxruntime(), cluster, values)
