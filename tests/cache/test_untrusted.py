"""A cache folder that others may write to, through the whole of the hub: not used, and the user is warned once."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import hub
from hub.errors import HubWarning
from hub.frontend import record
from hub.process.environment import variables_set


@pytest.fixture(autouse=True)
def _news(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each test a process that has not yet warned about any folder."""
    monkeypatch.setattr(record, "_warned_folders", set[str]())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "cache"
    found.mkdir()
    found.chmod(0o777)
    return found


def messages(folder: Path, size: int) -> list[str]:
    """Compile and run a model with a cache; return the messages that the user sees."""
    torch._dynamo.reset()  # else a model of an earlier size runs what was compiled for another folder
    model, x = torch.nn.Linear(size, 4).eval(), torch.ones(2, size)
    module = torch.compile(model, backend="hub", options={"tune": "off", "threads": 1})
    with torch.no_grad(), variables_set({"HUB_CACHE_DIR": str(folder)}), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.testing.assert_close(module(x), model(x))
    (plan,) = hub.plans(module)
    told = "no cache: the cache folder is not used" in str(plan.events)
    assert told == bool(folder.stat().st_mode & 0o022)
    warned = [one for one in heard if issubclass(one.category, HubWarning)]
    assert all(one.filename == __file__ for one in warned), "it is not attributed to the line that called the model"
    return [str(one.message) for one in warned]


def test_the_user_hears_of_it_once_for_each_folder(folder: Path, tmp_path: Path) -> None:
    """The warning has the command that fixes it; nothing is written there. Another folder causes a new warning."""
    remedy = f"the cache folder is not used: others may write to {folder}; chmod go-w {folder}"
    assert messages(folder, 8) == [f"nothing is saved for later processes: {remedy}"]
    assert messages(folder, 9) == []
    assert not list(folder.iterdir())
    other = tmp_path / "other"
    other.mkdir()
    other.chmod(0o770)
    assert f"chmod go-w {other}" in messages(other, 8)[0]


def test_the_remedy_works(folder: Path) -> None:
    """After the command the folder is used, and there is no warning."""
    folder.chmod(0o755)
    assert messages(folder, 8) == []
    assert list(folder.iterdir())


def test_who_turns_warnings_into_errors_gets_one(folder: Path) -> None:
    """And the next call works: planning was done."""
    model, x = torch.nn.Linear(8, 4).eval(), torch.ones(2, 8)
    module = torch.compile(model, backend="hub", options={"tune": "off", "threads": 1})
    with torch.no_grad(), variables_set({"HUB_CACHE_DIR": str(folder)}):
        with pytest.raises(HubWarning, match="chmod go-w"):
            module(x)
        torch.testing.assert_close(module(x), model(x))
