"""Find out whether a model's calls would skip Dynamo, for `hub explain`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hub.frontend.direct.program import Program
from hub.process.environment import variables_set

_N_CALLS = 3
"""Number of calls after which the next one of their form skips Dynamo: one to capture, one to record, and one more for
models that change in their first call."""


def why_dynamo(model: Callable[..., Any], inputs: Sequence[Any]) -> str:
    """Return why calls of `model(*inputs)` would go through Dynamo; "" if they would not. Call the model, in eager.

    Nothing of the attempt is cached. Only for the command line, whose process nothing else uses: it sets a variable.
    """
    options = {"backends": (), "tune": "off", "start": "wait", "background": False, "plan": None}
    with tempfile.TemporaryDirectory(prefix="hub-") as folder, variables_set({"HUB_CACHE_DIR": folder}):
        program = Program(model, options, dynamic=None)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # problems with capture are reported with the plans
            for _ in range(_N_CALLS):
                program.call((*inputs,), {})
        return program.why_dynamo


def calls_text(why: str) -> str:
    """Return a sentence on whether calls go through Dynamo, given the reason (`why_dynamo`)."""
    way = f"go through Dynamo: {why}" if why else "skip Dynamo"
    return f"calls of the model that hub.compile returns {way}"
