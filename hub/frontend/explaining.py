"""`hub.explain`: plan without running."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from hub.capture.attention import expand_attention
from hub.capture.call import capture_call, program_behind
from hub.capture.frames import is_part_of_a_call
from hub.capture.inference import capture_inference
from hub.capture.nothing import why_nothing
from hub.capture.sources import weight_positions
from hub.config.options import resolve
from hub.config.settings import working_folder
from hub.discovery.registry import registry
from hub.errors import CaptureError, HubError, OptionError, type_of
from hub.frontend.checking import check_names
from hub.frontend.direct.why_dynamo import calls_text
from hub.frontend.eager_plans import eager_plan
from hub.plan import Event, EventKind, Plan, Stage
from hub.planning.make import Maker
from hub.plugin.graph import hint
from hub.report.progress import progress_for


def explain(
    model: Callable[..., Any],
    *inputs: Any,
    options: Mapping[str, Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> tuple[Plan, ...]:
    """Return the plan of each graph that `model(*inputs, **kwargs)` is captured as. Compile and time nothing.

    Prices are estimates, unless an earlier run on this machine left a plan in the cache, which is then returned unchanged.
    The model itself runs once, in eager, to find its graphs. Backends that explain their clusters may run those. Other
    compiled models are not affected. If `model` is compiled already, the original model is explained. If `hub.compile` made
    it, an event reports whether its calls skip Dynamo, and if not, why. Raise OptionError for wrong options, PlanError for
    a plan file that cannot be replayed, and CaptureError, with the cause, if nothing was captured.
    """
    if not callable(model):
        raise OptionError(f"{type_of(model)} cannot be called", hint="pass a torch.nn.Module or a function")
    chosen = resolve(options, os.environ, working_folder())
    check_names(chosen)
    found: list[Plan] = []
    errors: list[HubError] = []

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        expand_attention(module)
        try:
            graph = capture_inference(module, example_inputs, weight_positions(module, example_inputs))
        except CaptureError as error:
            found.append(eager_plan("uncaptured", str(error)))
            return module
        values = [hint(value) if isinstance(value, torch.SymInt) else value for value in example_inputs]
        try:
            graph = replace(graph, is_part=is_part_of_a_call(module))
            found.append(Maker(graph, "inference", chosen, registry(), progress_for(graph.name)).predict(values))
        except HubError as error:  # kept until Dynamo is done, which would wrap it
            errors.append(error)
        return module

    frames = capture_call(model, inputs, kwargs, backend)
    if errors:
        raise errors[0]
    if not found:
        raise why_nothing(model, frames).error()
    program = program_behind(model)
    if program is None:
        return tuple(found)
    note = Event(kind=EventKind.NOTE, stage=Stage.EXPLAIN, message=calls_text(program.why_dynamo))
    return tuple(plan.with_events(note) for plan in found)
