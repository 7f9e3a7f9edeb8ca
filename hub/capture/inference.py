"""Capture a program for inference as pre-dispatch functional ATen, so that `linear`, `layer_norm` and friends survive."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx

from hub.capture.composites import COMPOSED
from hub.capture.fast_paths import SAID
from hub.capture.fold import fold_constants
from hub.capture.hidden import hidden_write, lost_write, written_hidden_view
from hub.capture.layouts import keep_layouts
from hub.capture.pins import alias_chain, pins
from hub.capture.simplify import simplify
from hub.errors import CaptureError
from hub.plugin.graph import Graph, output_arguments
from hub.process.phases import Phases, Work
from hub.torch_private import (
    NAMES,
    OperatorBase,
    RestartAnalysis,
    aot_export_module,
    is_any_autocast_enabled,
    set_grad_enabled,
)

_numbers = itertools.count()
_FUNCTORCH = NAMES["functorch"].module


def capture_inference(
    module: fx.GraphModule, inputs: Sequence[Any], weight_positions: Sequence[int] = (), phases: Phases | None = None
) -> Graph:
    """Return the functional ATen graph of a flat FX program, with symbolic sizes kept.

    `inputs` are real or fake tensors, SymInts and plain numbers, in placeholder order. `weight_positions` are the positions
    of parameters and buffers. `phases` records the time that AOTAutograd takes. Raise CaptureError, with the cause, if
    AOTAutograd cannot express the program.
    """
    if is_any_autocast_enabled():
        raise CaptureError("autocast casts below the pre-dispatch form, and so would do so at every call")
    if transform := _functorch_transform(module):
        # Pre-dispatch tracing cannot look inside one, and leaves its level behind when it fails.
        raise CaptureError(f"{transform} inside the program has no pre-dispatch form")
    if view := written_hidden_view(module):
        raise CaptureError(f"{view} returns views without declaring them, and a write to such memory would be lost")
    if reason := lost_write(module):
        raise CaptureError(reason)
    if _leaves_gradients_otherwise(module):
        raise CaptureError(
            "the program leaves gradients switched on or off after it, which a functional graph cannot express"
        )
    try:
        with torch.no_grad(), (phases or Phases()).during(Work.CAPTURE):
            exported, signature = aot_export_module(
                module, tuple(inputs), trace_joint=False, pre_dispatch=True, decompositions={**SAID, **COMPOSED}
            )
    except RestartAnalysis:
        raise  # for Dynamo, which captures the program again, with less of it symbolic
    except Exception as error:
        raise CaptureError(
            f"AOTAutograd cannot express the program: {type(error).__name__}: {error}",
            hint="it runs in eager; `TORCH_LOGS=aot` shows more",
        ) from error
    if signature.input_tokens:
        # Checks of values (of a singular matrix, say) take and return a token each, which no caller of the graph has.
        raise CaptureError(f"{len(signature.input_tokens)} effects inside the program are ordered by tokens")
    captured = cast("fx.GraphModule", exported)
    if mode := _mode_change(captured):
        # The pre-dispatch form keeps such calls as nodes around operators without casts. AOTAutograd inserts the casts.
        raise CaptureError(f"{mode} inside the program has no functional pre-dispatch form")
    if writer := hidden_write(captured):
        raise CaptureError(f"{writer} writes to its arguments without declaring it")
    mutated = signature.user_inputs_to_mutate
    outputs = output_arguments(captured)
    targets = tuple(mutated[node.name] for node in outputs[: len(mutated)])
    if view := _view_of_a_written_input(outputs[: len(mutated)], outputs[len(mutated) :]):
        raise CaptureError(f"{view} is a view of an input that was written to through another view")
    keep_layouts(captured, module, len(targets))
    simplify(captured)
    fold_constants(captured)
    placeholders = [node.name for node in captured.graph.find_nodes(op="placeholder")]
    weights = tuple(placeholders[position] for position in weight_positions if placeholders[position] not in targets)
    return Graph(
        module=captured,
        name=f"graph{next(_numbers)}",
        mutated=targets,
        weights=weights,
        pinned=pins(captured, n_mutated=len(targets), returned=range(len(targets), len(outputs))),
    )


def _view_of_a_written_input(written: Sequence[Any], returned: Sequence[Any]) -> str | None:
    """Return the name of an output that shares memory with a written input but is not a view of the value written back.

    `v = x.unsqueeze(0); v.relu_(); return v`: the graph returns relu's result, and writes a view of it to x. The output
    could be made from x only by the inverse view, which AOTAutograd's wrappers know but no graph contains.
    """
    owners = {alias_chain(node)[-1] for node in written} - {*written}
    found = (node for node in returned if isinstance(node, fx.Node) and node not in written)
    return next((node.name for node in found if alias_chain(node)[-1] in owners), None)


def _leaves_gradients_otherwise(module: fx.GraphModule) -> bool:
    """Return whether a program ends in another gradient mode than it begins in, the one of the capture."""
    switches = module.graph.find_nodes(op="call_function", target=set_grad_enabled)
    return bool(switches) and switches[-1].args[0] is not torch.is_grad_enabled()


def _functorch_transform(module: fx.GraphModule) -> str | None:
    """Return the name of the first functorch operation in a program, None if there is none."""
    for node in module.graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__module__", "").startswith(_FUNCTORCH):
            return node.target.__name__
    return None


def _mode_change(captured: fx.GraphModule) -> str | None:
    """Return the name of the first call that changes a global mode such as autocast, None if there is none."""
    for node in captured.graph.nodes:
        is_operator = isinstance(node.target, OperatorBase) or node.meta.get("val") is not None
        if node.op == "call_function" and not is_operator and node.target is not set_grad_enabled:
            return cast("Any", node.target).__name__
    return None
