"""Remembered failures: whose they are, and when they no longer count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hub.errors import CompileError, LimitExceeded, PluginError, WorkerDied
from hub.partition.group import Group
from hub.planning.failures import known_failure, remember_failure

LIMITS = {
    "compile_limit_s": "not compiled within 5 s (`workers.compile_limit_s`)",
    "memory_limit_gb": "it took 300 MB of memory, 200 MB allowed (`workers.memory_limit_gb`)",
    "output_limit_mb": "it saved 3 MB, 2 MB allowed (`workers.output_limit_mb`, and room for the weights)",
}


def failing(set_stage: Callable[..., Any], error: PluginError) -> tuple[Any, Group]:
    """Return a context in which the toy's candidate for the whole graph failed."""
    stage = set_stage(nn.Tanh(), [torch.ones(4)], {"toy": ""})
    group = Group("toy", tuple(node.name for node in stage.context.graph.nodes))
    remember_failure(stage.context, replace(stage.context.candidate("k0", group, stage.settings), failure=error))
    return stage, group


def known_under(stage: Any, group: Group, **changes: Any) -> CompileError | None:
    """Return what a later process with other settings of workers knows about the candidate."""
    options = stage.context.options
    workers = options.workers.model_copy(update=changes)
    context = replace(stage.context, options=options.model_copy(update={"workers": workers}))
    return known_failure(context, context.candidate("k0", group, stage.settings))


@pytest.mark.parametrize("option", LIMITS)
def test_a_failure_at_a_limit_counts_under_that_limit_only(set_stage: Callable[..., Any], option: str) -> None:
    """A candidate that exceeded a limit may be within a larger one: it is tried again, and no `forget` is needed."""
    stage, group = failing(set_stage, LimitExceeded(LIMITS[option]))
    assert option in str(known_under(stage, group))
    assert known_under(stage, group, **{option: 1e4}) is None


def test_what_a_failure_says_is_no_limit(set_stage: Callable[..., Any]) -> None:
    """A backend that only mentions a limit failed regardless of the limits."""
    stage, group = failing(set_stage, CompileError("it wanted more than `workers.memory_limit_gb`"))
    assert known_under(stage, group, memory_limit_gb=1e4) is not None


def test_other_failures_count_under_every_limit(set_stage: Callable[..., Any]) -> None:
    """A crash does not depend on limits."""
    stage, group = failing(set_stage, CompileError("the worker process died: killed by SIGSEGV"))
    for option in LIMITS:
        assert "SIGSEGV" in str(known_under(stage, group, **{option: 1e4}))


@pytest.mark.parametrize("is_killed", [True, False])
def test_who_is_killed_from_outside_has_not_failed_until_it_happens_again(
    set_stage: Callable[..., Any], is_killed: bool
) -> None:
    """Users and systems out of memory end processes, whatever runs in them; the second time it counts."""
    died = WorkerDied("the worker process died")
    died.was_ended_from_outside = is_killed
    stage, group = failing(set_stage, died)
    assert (known_under(stage, group) is None) == is_killed
    remember_failure(stage.context, replace(stage.context.candidate("k0", group, stage.settings), failure=died))
    assert "died" in str(known_under(stage, group))
