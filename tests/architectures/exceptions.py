"""Architectures of which the rules alone make no model that runs: what else their configurations need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXCEPTIONS: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"arguments": {"attn_layer_indices": [1]}},
    "zamba": {"fields": {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2}},
    "granitemoehybrid": {"arguments": {"layer_types": ["mamba", "attention"] * 16}},
}
""" "arguments" go to the configuration's class before it is made small; "fields" replace what the rules gave."""
