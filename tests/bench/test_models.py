"""Models by name, by module and by file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hub.bench.models import check_name, load_model
from hub.errors import HubError, ModelError, OptionError

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

def leaving():
    raise SystemExit(3)

def failing():
    class Wrong(torch.nn.Module):
        def forward(self, x):
            return x @ torch.ones(2, 2)
    return Wrong(), (torch.ones(1, 3),)

def odd():
    return torch.nn.Linear(3, 1)

def bare():
    return torch.nn.Linear(3, 1), torch.ones(1, 3)

def sized(width, *, depth, bias=True, **others):
    return pair()

model = torch.nn.Linear(3, 1)
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
    with pytest.raises(OptionError, match="there is no module 'no_such', neither installed nor in"):
        load_model("no_such:pair")
    loaded = load_model("torch_models:pair")
    assert loaded.module(*loaded.inputs).shape == (2, 1)


def test_inputs_may_be_keywords(source: Path) -> None:
    """A dictionary is passed on by name, and the model still looks like one with positions."""
    loaded = load_model(f"{source}:keywords")
    assert torch.equal(loaded.module(*loaded.inputs), torch.full((2,), 3.0))


@pytest.mark.parametrize(
    ("spec", "message", "kind"),
    [
        ("{source}:par", "has no function 'par'; did you mean 'pair'", OptionError),
        ("{source}:", "names no model", OptionError),
        (".:pair", "'.' is neither a Python file nor the name of a module", OptionError),
        ("{source}", "names a file and no function", OptionError),
        ("{folder}/notes.txt:pair", "notes.txt is not a Python file", OptionError),
        ("/no/such/file.py:pair", "there is no file /no/such/file.py", OptionError),
        ("restnet18", "no built-in model is named 'restnet18'; did you mean 'resnet18'", OptionError),
        ("{source}:broken", "failed (at torch_models.py:14 in broken): ValueError: no weights", ModelError),
        ("{source}:leaving", "failed (at torch_models.py:17 in leaving): SystemExit: 3", ModelError),
        ("{source}:odd", "not a module and its inputs", ModelError),
        ("{source}:bare", "not a tuple or dict", ModelError),
        ("{source}:sized", "needs width, depth, which no command gives", OptionError),
        ("{source}:model", "is a model itself: its inputs are not known", OptionError),
        (
            "{folder}/wrong.py:pair",
            "wrong.py cannot be imported: SyntaxError: '(' was never closed (wrong.py, line 1)",
            ModelError,
        ),
        (
            "{folder}/needy.py:pair",
            "needy.py cannot be imported (at needy.py:1 in <module>): ModuleNotFoundError: No module named 'no_such'",
            ModelError,
        ),
    ],
)
def test_a_wrong_model_is_named_with_what_is_wrong(source: Path, spec: str, message: str, kind: type[HubError]) -> None:
    """Every mistake has its own message: of the user's words an OptionError, of the model's code a ModelError."""
    for name, text in (("notes.txt", "pair"), ("wrong.py", "def pair("), ("needy.py", "import no_such")):
        (source.parent / name).write_text(text)
    with pytest.raises(kind) as caught:
        load_model(spec.format(source=source, folder=source.parent))
    assert message in str(caught.value)
    assert caught.value.hint


def test_a_model_that_fails_in_eager_is_tried_on_request(source: Path) -> None:
    """The commands try it, so that its own mistake is not taken for one of a compiler; the message has the line."""
    load_model(f"{source}:failing")
    with pytest.raises(ModelError, match=r"failing' fails in eager \(at torch_models.py:\d+ in forward\): RuntimeError: "):
        load_model(f"{source}:failing", is_tried=True)


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
