"""`generate` of sixteen architectures through `hub.compile`: eager's tokens, and no Dynamo once it knows both programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import hub
from hub.frontend.direct.compile import program_of
from hub.frontend.direct.trial import Pause
from tests import slices
from tests.generation.tiny import MODELS, built, hf, prompt

TOKENS = 24
STATE_IN_ATTRIBUTES = ("recurrent_gemma",)
"""Models whose modules hold the state of generation, as `self.recurrent_states`: it is another object after each call."""
OPTIONS: Mapping[str, Any] = {"tune": "off", "start": "wait", "backends": ("onnxruntime",)}
pytestmark = pytest.mark.filterwarnings(
    "ignore::hub.errors.HubWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)


def generated(model: Any, name: str, **how: Any) -> torch.Tensor:
    """Return the tokens that a model generates."""
    how = {"do_sample": False, "max_new_tokens": TOKENS, **how}
    return model.generate(**prompt(name), **how)


@pytest.mark.parametrize("name", slices.drawn(MODELS, one_in=16))
def test_generate_chooses_eagers_tokens(name: str) -> None:
    """All calls but those that are captured go without Dynamo, unless each replaces attributes of the model."""
    model = built(name)
    expected = generated(model, name)
    compiled = hub.compile(model, options=OPTIONS)
    program = program_of(compiled)
    for _ in range(4):
        program._pauses = {False: Pause(), True: Pause()}
        assert torch.equal(generated(compiled, name), expected)
    before = program._n_uses
    assert torch.equal(generated(compiled, name), expected)
    if name in STATE_IN_ATTRIBUTES:
        assert program.why_dynamo.startswith("every call writes to")
    else:
        assert program._n_uses - before >= TOKENS - 1, program.why_dynamo
    assert any(set(plan.backends) - {"eager"} for plan in hub.plans(compiled))


WAYS: Mapping[str, dict[str, Any]] = {
    "static cache": {"cache_implementation": "static"},
    "beams": {"num_beams": 3},
    "sampling": {"do_sample": True},
    "assisted": {"prompt_lookup_num_tokens": 3},
    "without cache": {"use_cache": False},
}


@pytest.mark.parametrize("way", slices.drawn(WAYS, one_in=5))
@pytest.mark.parametrize("name", ["llama"])
def test_each_way_to_generate_chooses_eagers_tokens(name: str, way: str) -> None:
    """Several times over, since the first calls, the captured ones and those without Dynamo are different ways."""
    model = built(name)
    compiled = hub.compile(model, options=OPTIONS)
    for seed in range(4):
        program_of(compiled)._pauses = {False: Pause(), True: Pause()}
        found = []
        for one in (model, compiled):
            torch.manual_seed(seed)
            inputs = {key: value[:1] if way == "assisted" else value for key, value in prompt(name).items()}
            found.append(one.generate(**inputs, **{"do_sample": False, "max_new_tokens": TOKENS, **WAYS[way]}))
        assert torch.equal(*found), way


def test_the_first_tokens_do_not_wait_for_a_plan() -> None:
    """The default answers in eager until there is a plan, and `forward` may be replaced, too."""
    model = built("llama")
    expected = generated(model, "llama")
    model.forward = hub.compile(model.forward, options={"tune": "off", "backends": ("onnxruntime",), "start": "eager"})
    assert torch.equal(generated(model, "llama"), expected)
    assert hub.wait(model.forward, 600)
    for _ in range(3):
        assert torch.equal(generated(model, "llama"), expected)


def test_generate_compiles_its_own_forward_with_the_hub() -> None:
    """`generate(compile_config=...)` is how `transformers` compiles a forward itself, where the cache is static."""
    model = built("llama")
    how = {"cache_implementation": "static"}
    expected = generated(model, "llama", **how)
    config = hf.CompileConfig(fullgraph=True, dynamic=None, mode=None, backend="hub", options=dict(OPTIONS))
    config._compile_all_devices = True  # else it compiles on accelerators only
    for _ in range(2):
        assert torch.equal(generated(model, "llama", compile_config=config, **how), expected)
    plans = hub.plans(model._compiled_call)
    assert plans and all("onnxruntime" in plan.backends for plan in plans)
