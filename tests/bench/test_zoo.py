"""The zoo: built-in models are whole, small on demand, and the same every time."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from hub.bench import zoo
from hub.errors import HubError


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_model_gives_finite_tensors(name: str) -> None:
    """`module(*inputs)` gives one tensor, or several, each with the batch as its first dim."""
    module, inputs = zoo.build(name, batch=2, small=True)
    with torch.no_grad():
        found = module(*inputs)
    for value in found if isinstance(found, tuple) else (found,):
        assert isinstance(value, torch.Tensor)
        assert value.shape[0] == 2
        assert bool(value.isfinite().all())
    assert not module.training


@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_model_has_two_batch_sizes(name: str) -> None:
    """The benchmark of the whole zoo runs both, and the first is the model's own."""
    first, second = zoo.MODELS[name].batches
    assert first != second
    assert zoo.build(name, small=True)[1][-1].shape[0] == first


def test_a_decoding_step_continues_what_the_steps_before_it_began() -> None:
    """Feeding back the keys and values that it gives is the same as knowing the longer past from the start."""
    step, (ids, position, *past) = zoo.build("decode", small=True)
    with torch.no_grad():
        _, *grown = step(ids, position, *past)
        following = step(ids, position + 1, *grown)
    assert grown[0].shape[2] == past[0].shape[2] + 1
    torch.testing.assert_close(following[1][:, :, :-1], grown[0], rtol=0, atol=0)


def test_equal_names_give_equal_weights_and_inputs() -> None:
    """Contenders in different processes get the same model."""
    (first, one), (second, two) = zoo.build("bert", small=True), zoo.build("bert", small=True)
    torch.testing.assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_building_leaves_the_random_numbers_of_the_caller_alone() -> None:
    """A seed set before building counts after it."""
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    zoo.build("mlp", small=True)
    assert torch.equal(torch.rand(1), expected)


def test_no_bias_or_scale_is_left_without_effect() -> None:
    """A backend that drops a bias must give wrong numbers, so none may be all zeros."""
    module, _ = zoo.build("resnet18", small=True)
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            assert value.numel() == 1 or value.std() > 0, name


def test_minilm_is_trained() -> None:
    """Sentences on one subject are nearer to each other than to one on another."""
    from hub.bench.zoo import text

    lines = ("The team won the football match.", "The striker scored a goal.", "Bake the bread for an hour.")
    with torch.no_grad():
        near = text.trained_encoder()(*text.tokenized(lines))
    same, other = (near[0] @ near[1]).item(), (near[0] @ near[2]).item()
    assert same > other + 0.2


def test_an_unknown_name_gives_the_nearest() -> None:
    """A misspelt model is an error with a suggestion."""
    with pytest.raises(HubError, match="no built-in model is named 'bret'; did you mean 'bert'"):
        zoo.build("bret")


def test_listing_names_imports_no_torch() -> None:
    """The command line lists models at once."""
    script = "import sys, hub.bench.zoo; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
