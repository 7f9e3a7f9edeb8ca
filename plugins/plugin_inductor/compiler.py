"""Runs Inductor's graph compiler on a lowered cluster with frozen weights, and returns the innermost callable."""

from __future__ import annotations

import contextlib
import operator
import os
import shlex
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from hub.plugin import CompileSettings, environment_now, tracing, using_threads
from plugin_inductor.aligned import for_device
from plugin_inductor.folders import VARIABLE, trusted_place
from plugin_inductor.lower import Lowered
from plugin_inductor.packing import choosing_libraries
from plugin_inductor.quiet import ignored_warnings
from plugin_inductor.symbols import SizeGuards
from plugin_inductor.torch_private import (
    BoxedBool,
    BoxedDeviceIndex,
    CompiledFxGraph,
    DisableAutocast,
    GraphLowering,
    PyCodeCache,
    V,
    compile_fx,
    config,
    constant_fold,
    convert_conv_weights_to_channels_last,
    cpp_builder,
    disable_current_modes,
    freezing_passes,
    in_context,
    recursive_joint_graph_passes,
    view_to_reshape,
)

Call = Callable[[list[Any]], Sequence[torch.Tensor]]
"""Function that takes a list of inputs, which it empties, and returns the outputs."""

GETITEM = "getitem"
"""Operator name in recipes for the selection of one of several results."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A call that creates a constant: an operator's name, and arguments (plain values, tensors or further recipes)."""

    operator: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """Inductor's result for one lowered cluster."""

    call: Call
    guards: SizeGuards
    strides: tuple[tuple[str, ...], ...]
    """For every input, the strides that it was compiled for, over the guards' symbols; empty for numbers."""
    constant_outputs: tuple[int, ...] = ()
    """Positions of the outputs that do not depend on the inputs. Inductor returns the same tensor on every call, and drops
    copies that are added to its graph; `call` makes the copies."""
    owner: Any = None
    """The `CompiledFxGraph`, which keeps the program alive: Inductor dismantles the program when it is collected."""
    source: str = ""
    """Inductor's Python program, including its C++ or Triton kernels; empty if there was nothing to compile."""
    namespace: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Globals of that program, including its kernels."""
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict[str, torch.Tensor])
    """Globals that are constants."""
    recipes: Mapping[int, Recipe] = field(default_factory=dict[int, Recipe])
    """How constants in an opaque layout were created, by id of the tensor."""
    weights: tuple[torch.Tensor, ...] = ()
    aligned_inputs: tuple[int, ...] = ()
    """Positions of the inputs that must start at an aligned address (on GPUs)."""
    devices: tuple[str, ...] = ()
    """Kinds of devices that the program runs on: "cpu", "cuda"."""
    graph: str = ""
    """The graph after Inductor's own passes, as text."""


def build(lowered: Lowered) -> Program:
    """Compile a lowered cluster, within `compiling`. Consumes `lowered.module`. Any exception of Inductor propagates."""
    program, inputs = lowered.module, list(lowered.inputs)
    with V.set_fake_mode(lowered.mode):
        program = recursive_joint_graph_passes(program, input_device=next(_devices(program), torch.device("cpu")))
        layout_opt = GraphLowering.decide_layout_opt(program, is_inference=True)
        recipes = _freeze(program, inputs, layout_opt=layout_opt) if lowered.weights else {}
        _align_constants(program)
        output = program.graph.output_node()
        results: Sequence[fx.Node] = output.args[0]  # pyright: ignore[reportAssignmentType]
        output.meta["user_visible_output_idxs"] = list(range(len(results)))
        constant_outputs = tuple(position for position, node in enumerate(results) if node.op == "get_attr")
        # Python between kernels takes longer than many kernels do; on GPUs the C++ wrapper has not been tried.
        in_cpp = is_on_cpu(program)
        with config.patch(cpp_wrapper=in_cpp):
            result = compile_fx.compile_fx_inner(
                program,
                inputs,
                cudagraphs=BoxedBool(False),
                cpp_wrapper=in_cpp,
                is_inference=True,
                boxed_forward_device_index=BoxedDeviceIndex(None),
                layout_opt=layout_opt if lowered.weights else None,
            )
    return _program(result, recipes, lowered, constant_outputs)


@contextlib.contextmanager
def compiling(settings: CompileSettings, *, has_weights: bool, trace_folder: Path | None = None) -> Generator[None]:
    """Set up a compilation: take PyTorch's lock, set our configuration, and disable the caller's modes.

    Raise CompileError if there is no folder that only this user can write to.
    """
    place = trusted_place()
    chosen = _configuration(settings, has_weights=has_weights, trace_folder=trace_folder)
    if not place.has_headers:
        chosen["cpp_cache_precompile_headers"] = False
    with (
        tracing(),  # one compilation at a time: Inductor keeps state in globals
        ignored_warnings(Warning),
        torch.inference_mode(False),
        torch.no_grad(),
        DisableAutocast(),
        disable_current_modes(),
        in_context(None),
        config.patch(chosen),
        using_threads(settings.threads),  # Inductor times libraries and kernels while it compiles
        _whole_files(),
        environment_kept(),
    ):
        os.environ[VARIABLE] = str(place.folder)
        yield


def _configuration(settings: CompileSettings, *, has_weights: bool, trace_folder: Path | None) -> dict[str, Any]:
    is_full = settings.effort == "full"
    chosen: dict[str, Any] = {
        "freezing": has_weights,
        "freezing_discard_parameters": False,
        # As in torch's "max-autotune-no-cudagraphs"; the second setting applies to Triton's kernels only.
        "max_autotune": is_full,
        "coordinate_descent_tuning": is_full,
        "autotune_num_choices_displayed": 0,
        "max_autotune_report_choices_stats": False,
        "cpp.threads": settings.threads,
        "cpp.dynamic_threads": False,
        "cpp.enable_unsafe_math_opt_flag": False,
        "fx_wrapper": False,
        "triton.cudagraphs": False,
        # The hub has a cache of its own, and this one would convert every weight to text to hash it.
        "fx_graph_cache": False,
        "fx_graph_remote_cache": False,
        "keep_output_stride": True,
        # Wrong strides must raise instead of reading other memory.
        "size_asserts": True,
    }
    if trace_folder is not None:
        chosen |= {"trace.enabled": True, "trace.debug_dir": str(trace_folder), "trace.graph_diagram": False}
    return chosen


_OWN_VARIABLES = ("TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TRITON_")


@contextlib.contextmanager
def environment_kept() -> Generator[None]:
    """Restore the environment variables through which Inductor passes paths to child processes and kernels.

    Variables inherited from a parent process are restored, too: Inductor overwrites those that describe this process's
    memory.
    """
    before = _own_variables()
    try:
        yield
    finally:
        for name, value in _own_variables().items():
            if name not in before:
                os.environ.pop(name, None)
            elif value != before[name]:
                os.environ[name] = before[name]


def _own_variables() -> dict[str, str]:
    return {name: value for name, value in environment_now().items() if name.startswith(_OWN_VARIABLES)}


@contextlib.contextmanager
def _whole_files() -> Generator[None]:
    """Make the C++ compiler write to a temporary file next to its target, which then appears complete or not at all.

    Inductor assumes that a file that exists is complete. A worker can be killed at any time, and half a library or header
    in Inductor's cache would make later compilations fail, even of other programs.
    """
    run = cpp_builder.run_compile_cmd

    def run_aside(cmd_line: str, cwd: str) -> None:
        command = shlex.split(cmd_line)
        place = command.index("-o") + 1
        target, command[place] = command[place], f"{command[place]}.{os.getpid()}.partial"
        run(shlex.join(command), cwd)
        Path(cwd, command[place]).replace(Path(cwd, target))

    cpp_builder.run_compile_cmd = run_aside
    try:
        yield
    finally:
        cpp_builder.run_compile_cmd = run


def is_on_cpu(program: fx.GraphModule) -> bool:
    """Return whether all tensors of a program are on the CPU: a program for a GPU may also read a number from the CPU."""
    return all(device.type == "cpu" for device in _devices(program))


def _devices(program: fx.GraphModule) -> Iterator[torch.device]:
    values = (node.meta.get("val") for node in program.graph.nodes)
    return (value.device for value in values if isinstance(value, torch.Tensor))


def _freeze(program: fx.GraphModule, inputs: list[Any], *, layout_opt: bool) -> dict[int, Recipe]:
    """Fold and prepack weights in place, and return the recipes of weights that end in an opaque layout.

    These are the steps of `torch._inductor.freezing.freeze`, which reads weights from a tracing context that does not exist
    here.
    """
    if layout_opt:
        compile_fx.fake_tensor_prop(program, inputs, True)
        convert_conv_weights_to_channels_last(program)
    view_to_reshape(program)
    with choosing_libraries():
        freezing_passes(program, inputs)
    recipes = {node.name: recipe for node, recipe in _makers(program).items()}
    constant_fold(program)
    folded = {node.name: getattr(program, str(node.target)) for node in program.graph.find_nodes(op="get_attr")}
    return {id(value): recipes[name] for name, value in folded.items() if name in recipes}


def _align_constants(program: fx.GraphModule) -> None:
    """Copy constants on GPUs that folding left at unaligned addresses: a slice of a weight is a view into it."""
    for node in program.graph.find_nodes(op="get_attr"):
        value = getattr(program, str(node.target))
        if isinstance(value, torch.Tensor) and (copy := for_device(value)) is not value:
            setattr(program, str(node.target), copy)


def _makers(program: fx.GraphModule) -> dict[fx.Node, Recipe]:
    """Return a recipe for every call that reads only constants."""
    made: dict[fx.Node, Any] = {
        node: getattr(program, str(node.target)) for node in program.graph.find_nodes(op="get_attr")
    }
    recipes: dict[fx.Node, Recipe] = {}
    for node in program.graph.nodes:
        reads = node.all_input_nodes
        if node.op == "call_function" and reads and not node.kwargs and all(source in made for source in reads):
            name = GETITEM if node.target is operator.getitem else str(node.target)
            recipes[node] = made[node] = Recipe(name, map_arg(node.args, made.__getitem__))
    return recipes


def copying(call: Call, positions: tuple[int, ...]) -> Call:
    """Return a call whose outputs at these positions are new tensors."""
    if not positions:
        return call

    def run(inputs: list[Any]) -> Sequence[torch.Tensor]:
        outputs = list(call(inputs))
        for position in positions:
            outputs[position] = outputs[position].clone()
        return outputs

    return run


def _program(result: Any, recipes: Mapping[int, Recipe], lowered: Lowered, constant_outputs: tuple[int, ...]) -> Program:
    sizes = lowered.sizes
    guards, strides = sizes.guards(), sizes.strides()
    if not isinstance(result, CompiledFxGraph) or result.current_callable is None:
        return Program(copying(result, constant_outputs), guards, strides, constant_outputs)
    inner = result.current_callable if result.compiled_fn_runner is None else result.compiled_fn_runner.call
    namespace = getattr(inner, "__func__", inner).__globals__
    _forget(namespace)
    return Program(
        call=copying(result.current_callable, constant_outputs),
        guards=guards,
        strides=strides,
        constant_outputs=constant_outputs,
        owner=result,
        source=result.source_code,
        namespace=namespace,
        constants=dict(result.constants or {}),
        recipes=recipes,
        weights=lowered.weights,
        aligned_inputs=tuple(result.inputs_to_check),
        devices=tuple(result.device_types),
        graph=result.inductor_post_grad_graph_str,
    )


def _forget(namespace: Mapping[str, Any]) -> None:
    """Remove a program from Inductor's lists, which would keep it and its weights until the process ends.

    Inductor uses the lists to remove files, and to reuse programs without constants.
    """
    PyCodeCache.modules[:] = [module for module in PyCodeCache.modules if vars(module) is not namespace]
    path: Any = namespace.get("__file__")
    found = PyCodeCache.modules_no_attr.get(path)
    if found is not None and vars(found) is namespace:
        del PyCodeCache.modules_no_attr[path]
    PyCodeCache.linemaps.pop(path, None)
    name: Any = namespace.get("__name__")
    module = sys.modules.get(name)
    if module is not None and vars(module) is namespace:
        del sys.modules[name]
