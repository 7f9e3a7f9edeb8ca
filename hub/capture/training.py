"""Capture a program for training: run AOTAutograd once, in the hub, for a forward and a backward graph to plan."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

from functorch.compile import make_boxed_func
from torch import fx

from hub.capture.hidden import lost_write, replaced_by_another
from hub.capture.layouts import keep_layouts
from hub.capture.normalizations import IN_FLOAT32
from hub.capture.pins import pins
from hub.capture.simplify import simplify
from hub.errors import CaptureError
from hub.plugin.graph import Graph
from hub.torch_private import (
    HigherOrderOperator,
    OutputType,
    RestartAnalysis,
    TracingContext,
    aot_autograd,
    forward_ad,
    functorch_config,
)

Mode = Literal["inference", "forward", "backward"]
Compile = Callable[[Graph, Mode], Callable[..., Any]]
"""Function that turns a captured graph into a callable, which takes the inputs one by one."""

_numbers = itertools.count()
_IN_THE_GRAPH = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)


def capture_with_autograd(
    module: fx.GraphModule, inputs: Sequence[Any], compile_graph: Compile, weight_positions: Sequence[int] = ()
) -> Callable[..., Any]:
    """Return a callable whose graphs `compile_graph` compiled. It is differentiable if gradients are needed.

    AOTAutograd's run-time wrappers handle mutated inputs, aliased outputs and saved activations. The graphs are
    post-dispatch. `weight_positions` are the positions of parameters and buffers; an inference graph keeps them as weights.
    Raise CaptureError if AOTAutograd cannot express the program.
    """
    if name := replaced_by_another(module):
        raise CaptureError(f"PyTorch's capture puts a program with other results in the place of {name}")
    if reason := lost_write(module):
        raise CaptureError(reason)
    number = next(_numbers)
    n_inputs = len(inputs)  # not the inputs: AOTAutograd keeps the compilers, which would keep the weights alive

    def compiler(mode: Mode) -> Callable[[fx.GraphModule, Sequence[Any]], Any]:
        def compile_one(captured: fx.GraphModule, _: Sequence[Any]) -> Any:
            if mode == "forward":
                _keep_saved_tensors()
            if mode == "forward" and _writes_to_learned_inputs():
                raise CaptureError(
                    "the program writes, without recording gradients, to a weight that needs them",
                    hint="write to it outside of the compiled model, or set requires_grad to False",
                )
            if mode != "backward":
                _keep_layouts(captured, module)
            positions = weight_positions if mode == "inference" else ()
            return _boxed(compile_graph(_graph(captured, f"{mode}{number}", mode, positions, n_inputs), mode))

        return compile_one

    capture = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        decompositions=dict(IN_FLOAT32),
    )
    try:
        # Eager runs the backward outside of autocast, also that of a model called in it.
        with _scalars_where_loops_need_them(module), cast("Any", functorch_config).patch(backward_pass_autocast="off"):
            return capture(module, inputs)
    except RestartAnalysis:
        raise  # for Dynamo, which captures the program again, with less of it symbolic
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"AOTAutograd cannot express the program: {type(error).__name__}: {error}",
            hint="it runs in eager; `TORCH_LOGS=aot` shows more",
        ) from error


def _boxed(compiled: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """Return a callable that takes a list, and with it all references to what is in it, as AOTAutograd hands it over."""
    take: Callable[[list[Any]], Any] | None = getattr(compiled, "take", None)
    if take is None:
        return make_boxed_func(compiled)

    def taking(args: list[Any]) -> Any:
        return take(args)

    cast("Any", taking)._boxed_call = True  # what `make_boxed_func` sets, whose function unpacks the list
    return taking


def _keep_saved_tensors() -> None:
    """Let no backward claim the memory of saved tensors: none of the hub uses it, and `retain_graph` needs them again."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _keep_layouts(captured: fx.GraphModule, program: fx.GraphModule) -> None:
    """Lay outputs out as in eager, except those that AOTAutograd's wrappers regenerate by the strides of their bases."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    if metadata is None:
        return
    n_mutated = metadata.num_mutated_inp_runtime_indices
    kinds = enumerate(metadata.output_info, n_mutated)
    own = {place for place, output in kinds if output.output_type is OutputType.non_alias}
    keep_layouts(captured, program, n_mutated, own)


def _writes_to_learned_inputs() -> bool:
    """Return whether the program writes, without recording gradients, to an input that needs them: a moving average, say.

    AOTAutograd's wrappers would write it, and then give it a gradient of zeros instead of none, by which an optimizer moves
    it. As operators of the graph such writes would have to stay behind everything that reads the old value.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    written = () if metadata is None else metadata.input_info
    return any(one.mutates_data and one.requires_grad and one.mutations_under_no_grad_or_inference_mode for one in written)


def is_forward_mode() -> bool:
    """Return whether forward-mode differentiation is on in this thread: tensors may carry tangents then."""
    return cast("Any", forward_ad)._current_level >= 0


def writes_to_inputs() -> bool:
    """Return whether AOTAutograd's wrappers write to the inputs of the program being captured after its graph has run."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    return metadata is None or metadata.num_mutated_inp_runtime_indices > 0


@contextmanager
def _scalars_where_loops_need_them(module: fx.GraphModule) -> Generator[None]:
    """Allow a graph to hold a number read from a tensor, as the gradient of a `while_loop` does: the number of iterations.

    PyTorch captures that gradient in no other way. Its users set `torch._dynamo.config.capture_scalar_outputs`, but with
    that Dynamo would also capture what the user's own code reads. Other programs are not affected.
    """
    context = TracingContext.try_get()
    mode = context.fake_mode if context else None
    if mode is None or not _has_while_loop(module):
        yield
        return
    before = mode.allow_scalar_outputs
    mode.allow_scalar_outputs = True
    try:
        yield
    finally:
        mode.allow_scalar_outputs = before


def _has_while_loop(module: fx.GraphModule) -> bool:
    """Return whether a program or a body inside it holds a `while_loop`."""
    programs = (inside for inside in module.modules() if isinstance(inside, fx.GraphModule))
    targets = (node.target for program in programs for node in program.graph.nodes)
    operators = (target for target in targets if isinstance(target, HigherOrderOperator))
    return any(str(operator) == "while_loop" for operator in operators)


def _graph(captured: fx.GraphModule, name: str, mode: Mode, positions: Sequence[int], n_inputs: int) -> Graph:
    simplify(captured)
    placeholders = [node.name for node in captured.graph.find_nodes(op="placeholder")]
    # AOTAutograd keeps the order of inputs. If it merged some, the positions are invalid and weights stay inputs.
    weights = tuple(placeholders[position] for position in positions) if len(placeholders) == n_inputs else ()
    pinned = pins(captured, n_mutated=0, returned=_returned_as_they_are() if mode != "backward" else ())
    return Graph(captured, name, weights=weights, pinned=pinned, is_training=mode != "inference")


def _returned_as_they_are() -> list[int]:
    """Return the positions of a forward's outputs that AOTAutograd's wrappers return unchanged, with shared memory.

    The wrappers regenerate other outputs that share memory, from the inputs or the bases that they are views of. But if one
    operator makes several views (such as `unbind`), or views need no gradient, they must be views in the graph itself.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context else None
    if metadata is None:
        return []
    kinds = enumerate(metadata.output_info, metadata.num_mutated_inp_runtime_indices)
    return [position for position, output in kinds if output.output_type in _IN_THE_GRAPH]
