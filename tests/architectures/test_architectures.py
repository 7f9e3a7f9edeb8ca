"""Architectures of transformers through `hub.compile`: some with every commit, and the rules that make them tiny."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.architectures.differences import difference
from tests.architectures.results import NO_CONFIGURATION, NOT_RUN, RESULTS, TABLE, merged, table
from tests.architectures.server import Server
from tests.architectures.shrink import Way, shrunk
from tests.architectures.tiny import NAMES
from tests.slices import NUMBER

COUNT = 1
"""Architectures of one run, others with every commit: as many as a minute holds."""
LIMIT_S = 240
MAX_CLUSTERS = 20
"""Clusters of those that run here: what has hundreds takes minutes."""
ROWS = json.loads(RESULTS.read_text())["rows"]
RIGHT = {name: sum(row.get("clusters", {}).values()) for name, row in ROWS.items() if row["outcome"] == "right"}
RAN = [name for name, clusters in RIGHT.items() if clusters <= MAX_CLUSTERS]
DRAWN = [RAN[(NUMBER * COUNT + place) % len(RAN)] for place in range(COUNT)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start the server that runs architectures."""
    with Server(LIMIT_S) as found:
        yield found


@pytest.mark.xdist_group("architectures")
@pytest.mark.parametrize("name", DRAWN)
def test_some_architectures(name: str, server: Server) -> None:
    """Some architectures of those that were right before, others with every commit, give eager's answer."""
    row = server.row(name)
    assert row["outcome"] == "right", row


def test_the_table_is_what_the_file_gives() -> None:
    """The page of the docs is made from the results, and each architecture has a row."""
    results = json.loads(RESULTS.read_text())
    assert TABLE.read_text() == table(results)
    assert sorted(results["rows"]) == sorted(NAMES) or results["transformers"] != _version()


def _version() -> str:
    import transformers

    return transformers.__version__


def test_what_ran_replaces_what_was_known() -> None:
    """A later run replaces rows; architectures that never ran are listed as such."""
    first, second, third = NAMES[:3]
    before = {"rows": {first: {"outcome": "wrong"}, second: {"outcome": "right"}}}
    done = {first: {"name": first, "outcome": "right", "clusters": {"disc": 2}, "seconds": 3.2}}
    rows = merged(before, done, "abc")["rows"]
    assert rows[first] == {"outcome": "right", "clusters": {"disc": 2}}
    assert (rows[second]["outcome"], rows[third]["outcome"]) == ("right", NOT_RUN)


def test_totals_count_each_outcome() -> None:
    """Architectures without a tiny configuration do not count among those that run."""
    rows: dict[str, Any] = {
        "a": {"outcome": "right", "clusters": {"disc": 1}, "is_direct": True},
        "b": {"outcome": "wrong", "detail": "a | b"},
        "c": {"outcome": NO_CONFIGURATION, "detail": "<none>"},
    }
    text = table({"rows": rows, "torch": "2", "transformers": "5", "commit": "x"})
    assert "3 architectures: 2 run in eager, 1 have no tiny configuration" in text
    assert "In 1 of 2 (50 %)" in text
    assert "a / b" in text


def test_widths_heads_and_tokens_are_made_small() -> None:
    """Widths are set, heads divide them, and special tokens lie within the vocabulary, equal ones at equal numbers."""
    config = {
        "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 11008,
        "vocab_size": 32000, "eos_token_id": 31999,
        "text_config": {"hidden_size": 4096, "eos_token_id": 31999, "pad_token_id": 0},
    }  # fmt: skip
    found = shrunk(config)
    assert (found["hidden_size"], found["num_attention_heads"], found["num_key_value_heads"]) == (64, 4, 2)
    assert (found["intermediate_size"], found["vocab_size"]) == (128, 128)
    assert found["eos_token_id"] == found["text_config"]["eos_token_id"] < 128
    assert found["text_config"]["pad_token_id"] == 0


def test_one_layer_of_each_kind_is_kept() -> None:
    """What is listed by layer keeps one of each kind, and the number of layers is theirs."""
    kinds = ["linear", "linear", "linear", "full"] * 8
    found = shrunk({"num_hidden_layers": 32, "layer_types": kinds, "window_layers_mask": [1, 1, 1, 0] * 8})
    assert found["layer_types"] == ["linear", "full"]
    assert found["num_hidden_layers"] == len(found["layer_types"]) == 2


def test_a_backbone_keeps_as_many_outputs() -> None:
    """Places of outputs move to the layers that are left."""
    assert shrunk({"num_hidden_layers": 12, "out_indices": [3, 6, 9, 12]})["out_indices"] == [1, 2, 3, 4]


def test_scaled_widths_keep_their_ratios() -> None:
    """One factor for all widths keeps sums and products as they are."""
    found = shrunk({"hidden_size": 768, "projection_dim": 512, "intermediate_size": 3072}, Way("scaled"))
    assert found["hidden_size"] / found["projection_dim"] == 768 / 512
    assert found["intermediate_size"] == 4 * found["hidden_size"]


def test_images_are_four_patches_wide() -> None:
    """Images shrink with their patches; a way that keeps images leaves them."""
    config = {"image_size": 224, "patch_size": 16, "hidden_size": 64}
    assert shrunk(config)["image_size"] == 64
    assert shrunk(config, Way("kept", has_small_images=False))["image_size"] == 224


def test_differences_are_found() -> None:
    """Another value, another dtype and another structure are each reported; eager's own error is allowed."""
    right = torch.linspace(0, 1, 8)
    exact = right.double() + 1e-5
    assert difference(right, right, None, 8.0) == ""
    assert "relative error" in difference(right + 1e-3, right, exact, 8.0)
    assert difference(right + 5e-5, right, exact, 8.0) == ""
    assert "dtype" in difference(right.double(), right, None, 8.0)
    assert "structure" in difference((right,), right, None, 8.0)
    assert "infinite or NaN" in difference(torch.full_like(right, torch.nan), right, None, 8.0)
