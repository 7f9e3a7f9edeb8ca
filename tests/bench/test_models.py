"""Models by name, by module and by file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hub.bench.models import check_name, load_model
from hub.errors import HubError

SOURCE = """
import torch

def pair(batch=2):
    return torch.nn.Linear(3, 1), (torch.ones(batch, 3),)

def keywords():
    class Scaled(torch.nn.Module):
        def forward(self, x, *, scale):
            return x * scale
    return Scaled(), {"x": torch.ones(2), "scale": torch.tensor(3.0)}

def broken():
    raise ValueError("no weights")

def odd():
    return torch.nn.Linear(3, 1)

def bare():
    return torch.nn.Linear(3, 1), torch.ones(1, 3)
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "torch_models.py"
    path.write_text(SOURCE)
    return path


def test_a_factory_in_a_file_is_found(source: Path) -> None:
    """`file.py:factory` gives a module in eval mode and the inputs of one call."""
    loaded = load_model(f"{source}:pair", batch=5)
    assert loaded.module(*loaded.inputs).shape == (5, 1)
    assert not loaded.module.training


def test_a_factory_in_a_module_is_found(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:factory` is imported as Python would from the working directory."""
    monkeypatch.chdir(source.parent)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    with pytest.raises(HubError, match="no_such cannot be imported: ModuleNotFoundError"):
        load_model("no_such:pair")
    loaded = load_model("torch_models:pair")
    assert loaded.module(*loaded.inputs).shape == (2, 1)


def test_inputs_may_be_keywords(source: Path) -> None:
    """A dictionary is passed on by name, and the model still looks like one with positions."""
    loaded = load_model(f"{source}:keywords")
    assert torch.equal(loaded.module(*loaded.inputs), torch.full((2,), 3.0))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{source}:par", "has no function 'par'; did you mean 'pair'"),
        ("{source}:broken", "failed: ValueError: no weights"),
        ("{source}:odd", "gave no pair of a module and its inputs"),
        ("{source}:bare", "gave inputs that are no tuple"),
        ("/no/such/file.py:pair", "FileNotFoundError: there is no file /no/such/file.py"),
        ("restnet18", "no built-in model is named 'restnet18'; did you mean 'resnet18'"),
    ],
)
def test_a_wrong_model_is_named_with_what_is_wrong(source: Path, spec: str, message: str) -> None:
    """Every mistake has its own message."""
    with pytest.raises(HubError) as caught:
        load_model(spec.format(source=source))
    assert message in str(caught.value)


def test_a_batch_needs_a_factory_that_takes_it(source: Path) -> None:
    """The flag is not ignored."""
    with pytest.raises(HubError, match="takes no argument `batch`"):
        load_model(f"{source}:keywords", batch=4)


def test_a_name_is_checked_without_building_anything() -> None:
    """The command line finds a misspelt name before it imports torch."""
    check_name("bert")
    check_name("anything:else")
    with pytest.raises(HubError, match="did you mean 'bert'"):
        check_name("brt")
