"""Environment variables that are set for a while."""

from __future__ import annotations

import os

import pytest

from hub.process.environment import variables_set


def test_variables_are_restored_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that had a value has it again, and one that had none has none."""
    monkeypatch.setenv("HUB_TEST_OLD", "before")
    monkeypatch.delenv("HUB_TEST_NEW", raising=False)
    with pytest.raises(KeyError), variables_set({"HUB_TEST_OLD": "during", "HUB_TEST_NEW": "during"}):
        assert (os.environ["HUB_TEST_OLD"], os.environ["HUB_TEST_NEW"]) == ("during", "during")
        raise KeyError
    assert os.environ["HUB_TEST_OLD"] == "before"
    assert "HUB_TEST_NEW" not in os.environ


def test_a_variable_that_is_deleted_meanwhile_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting a new one is no error."""
    monkeypatch.setenv("HUB_TEST_OLD", "before")
    with variables_set({"HUB_TEST_OLD": "during", "HUB_TEST_NEW": "during"}):
        del os.environ["HUB_TEST_OLD"], os.environ["HUB_TEST_NEW"]
    assert os.environ["HUB_TEST_OLD"] == "before"
