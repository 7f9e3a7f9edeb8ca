"""PyTorch's private names that the hub uses: each one with the reason, in one table.

No release of PyTorch promises to keep a private name. All other modules of the hub import these names from here, so the
table shows what a new release may break, and a missing name raises one error that says what to do. A name is imported on
its first use: importing this module imports no torch.

A name that only one plugin uses is in that plugin's own `torch_private.py`. `python -m tests.private_names` writes
docs/reference/private-pytorch.md from the table.
"""
# ruff: noqa: F401 - the imports below are for type checkers, which see PyTorch's own types in other modules
# pyright: reportUnusedImport=false

from __future__ import annotations

import enum
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hub.errors import PrivateNameError

if TYPE_CHECKING:
    import torch
    from torch import _TorchCompileWrapper as TorchCompileWrapper  # pyright: ignore[reportPrivateUsage]
    from torch import compiler
    from torch._C import _DisableAutocast as DisableAutocast  # pyright: ignore[reportPrivateUsage]
    from torch._C import _EnableTorchFunction as EnableTorchFunction  # pyright: ignore[reportPrivateUsage]
    from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled  # pyright: ignore[reportPrivateUsage]
    from torch._C import _is_torch_function_enabled as is_torch_function_enabled  # pyright: ignore[reportPrivateUsage]
    from torch._C import _set_grad_enabled as set_grad_enabled  # pyright: ignore[reportPrivateUsage]
    from torch._C._dynamo.eval_frame import (
        _debug_get_cache_entry_list as get_cache_entry_list,  # pyright: ignore[reportPrivateUsage]
    )
    from torch._C._dynamo.eval_frame import reset_code, set_code_exec_strategy
    from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards
    from torch._dispatch.python import enable_python_dispatcher
    from torch._dynamo import config as dynamo_config
    from torch._dynamo import convert_frame, eval_frame
    from torch._dynamo import source as dynamo_sources
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.convert_frame import compile_lock
    from torch._dynamo.eval_frame import OptimizedModule, cached_backends, innermost_fn
    from torch._dynamo.eval_frame import _TorchDynamoContext as DynamoContext  # pyright: ignore[reportPrivateUsage]
    from torch._dynamo.exc import (
        BackendCompilerFailed,
        InternalTorchDynamoError,
        ObservedException,
        RestartAnalysis,
        TorchRuntimeError,
        Unsupported,
    )
    from torch._dynamo.guards import CheckFunctionManager, DeletedGuardManagerWrapper, GuardManagerWrapper
    from torch._dynamo.guards import _get_closure_vars as get_closure_vars  # pyright: ignore[reportPrivateUsage]
    from torch._dynamo.hooks import Hooks
    from torch._dynamo.source import ConstantSource, is_from_unspecialized_param_buffer_source
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.types import (
        ConvertFrameReturn,
        FrameAction,  # pyright: ignore[reportPrivateImportUsage]
        FrameExecStrategy,  # pyright: ignore[reportPrivateImportUsage]
        GuardFilterEntry,
    )
    from torch._dynamo.utils import counters
    from torch._dynamo.variables.base import VariableTracker
    from torch._functorch import config as functorch_config
    from torch._functorch._aot_autograd.schemas import OutputType
    from torch._functorch.aot_autograd import aot_export_module
    from torch._guards import CompileContext, Guard, GuardsSet, Source, TracingContext, detect_fake_mode
    from torch._higher_order_ops.flex_attention import flex_attention
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner
    from torch._ops import HigherOrderOperator, OperatorBase, OpOverload
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, infer_size
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd import forward_ad
    from torch.fx._graph_pickler import GraphPickler
    from torch.fx._graph_pickler import Options as PicklerOptions
    from torch.fx._symbolic_trace import is_fx_symbolic_tracing
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv as vmap_for_bhqkv  # pyright: ignore[reportPrivateUsage]
    from torch.utils import _device as device_context
    from torch.utils import _pytree as pytree
    from torch.utils._ordered_set import OrderedSet
    from torch.utils._sympy.functions import FloorDiv
    from torch.utils._sympy.printers import PythonPrinter

    # PyTorch's own annotations of these are missing or incomplete.
    custom_operators: Mapping[str, Any]
    disable_current_modes: Callable[[], AbstractContextManager[Any]]
    dispatch_key: Callable[[str], Any]
    elementwise_dtypes: Callable[..., tuple[torch.dtype, torch.dtype]]
    empty_strided_cpu: Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]
    fake_tensor_proxies: dict[int, Any]
    functorch: Any
    gather_params: Callable[..., Any]
    get_current_dispatch_mode_stack: Callable[[], list[Any]]
    get_decompositions: Callable[[Sequence[Any]], dict[Any, Callable[..., Any]]]
    get_fp32_precision: Callable[[str, str], str]
    get_sdp_priority_order: Callable[[], list[int]]
    global_device_context: Any
    graph_break_reasons: list[Any]
    is_dispatch_key_included: Callable[[Any], bool]
    is_tracing: Callable[[], bool]
    len_torch_dispatch_stack: Callable[[], int]
    len_torch_function_stack: Callable[[], int]
    one_layer_lstm: Callable[..., Any]
    peek_interpreter_stack: Callable[[], Any]
    pop_mode: Callable[[], Any]
    push_mode: Callable[[Any], None]
    pop_function_mode: Callable[[], Any]
    push_function_mode: Callable[[Any], None]
    rnn_helper: Callable[..., Any]
    set_fp32_precision: Callable[[str, str, str], None]
    set_sdp_priority_order: Callable[[list[int]], None]
    set_version_counters: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None]
    tensor_handles: Callable[[list[torch.Tensor]], Sequence[Any]]
    top_saved_tensors_hooks: Callable[[bool], Any]

TRIED = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
"""Versions of PyTorch in which each name of the table was looked up."""


class Kind(enum.Enum):
    """What a name stands for."""

    CLASS = "class"
    FUNCTION = "function"
    MODULE = "module"
    """Read through its attributes, since PyTorch or the hub assigns them."""
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One private name of PyTorch's, or a public module with private attributes."""

    path: str
    """The module, and after a colon the name in it: "torch._ops:OpOverload"; a module alone if that is what is used."""
    kind: Kind
    reason: str
    """What the hub uses it for, and why no public name does; if it mentions no public name, there is none."""
    attributes: str = ""
    """Names of the attributes that are read through it, with spaces between them."""

    @property
    def module(self) -> str:
        """The module that has the name."""
        return self.path.partition(":")[0]

    @property
    def dotted(self) -> str:
        """The name as one writes it in Python."""
        return self.path.replace(":", ".")


def _class(path: str, reason: str, attributes: str = "") -> PrivateName:
    return PrivateName(path, Kind.CLASS, reason, attributes)


def _function(path: str, reason: str) -> PrivateName:
    return PrivateName(path, Kind.FUNCTION, reason)


def _module(path: str, reason: str, attributes: str = "") -> PrivateName:
    return PrivateName(path, Kind.MODULE, reason, attributes)


def _value(path: str, reason: str) -> PrivateName:
    return PrivateName(path, Kind.VALUE, reason)


SECTIONS: Mapping[str, Mapping[str, PrivateName]] = {
    "Graphs and operators": {
        "OpOverload": _class(
            "torch._ops:OpOverload", "The class of ATen operators in graphs; `torch.ops` has objects only."
        ),
        "OperatorBase": _class(
            "torch._ops:OperatorBase", "The class of all operators, to distinguish them from functions."
        ),
        "HigherOrderOperator": _class(
            "torch._ops:HigherOrderOperator", "The class of control flow and other operators that call programs."
        ),
        "FakeTensorMode": _class(
            "torch._subclasses.fake_tensor:FakeTensorMode",
            "Tensors without data, with symbolic sizes: the meta device has neither devices nor a shape environment.",
            "__module__",
        ),
        "detect_fake_mode": _function(
            "torch._guards:detect_fake_mode", "The mode of a graph's fake values, to trace the graph again in the same one."
        ),
        "enable_python_dispatcher": _class(
            "torch._dispatch.python:enable_python_dispatcher",
            "Has operators on symbolic sizes use their Python kernels, as when PyTorch traces.",
        ),
        "custom_operators": _value(
            "torch._library.custom_ops:OPDEFS",
            "Where `torch.library.custom_op` defined an operator, so that a worker imports that module.",
        ),
        "GraphPickler": _class(
            "torch.fx._graph_pickler:GraphPickler",
            "Sends graphs with symbolic sizes to workers; pickle cannot, `torch.export.save` takes exported programs only.",
            "dumps loads",
        ),
        "PicklerOptions": _class("torch.fx._graph_pickler:Options", "Says which metadata of nodes `GraphPickler` sends."),
        "get_decompositions": _function(
            "torch._decomp:get_decompositions",
            "PyTorch's decompositions of chosen operators; `torch.export.default_decompositions()` lacks some of them.",
        ),
        "gather_params": _function(
            "torch._decomp.decompositions:gather_params", "Groups an LSTM's weights by layer and direction."
        ),
        "rnn_helper": _function(
            "torch._decomp.decompositions:_rnn_helper", "Runs an LSTM's layers and directions, to unroll it step by step."
        ),
        "one_layer_lstm": _function(
            "torch._decomp.decompositions:one_layer_lstm", "One layer of an LSTM, unrolled; the operator calls oneDNN."
        ),
        "elementwise_dtypes": _function(
            "torch._prims_common:elementwise_dtypes",
            "The dtype in which an operator computes; `torch.result_type` knows the result's only.",
        ),
        "ELEMENTWISE_TYPE_PROMOTION_KIND": _class(
            "torch._prims_common:ELEMENTWISE_TYPE_PROMOTION_KIND",
            "The argument of `elementwise_dtypes`.",
            "DEFAULT INT_TO_FLOAT",
        ),
        "infer_size": _function("torch._prims_common:infer_size", "The size that -1 stands for in a shape, also symbolic."),
        "flex_attention": _value(
            "torch._higher_order_ops.flex_attention:flex_attention",
            "The operator in graphs; the public function of this name calls it.",
        ),
        "vmap_for_bhqkv": _function(
            "torch.nn.attention.flex_attention:_vmap_for_bhqkv",
            "Calls score modifications as eager's `flex_attention` does.",
        ),
        "TransformGetItemToIndex": _class(
            "torch._dynamo._trace_wrapped_higher_order_op:TransformGetItemToIndex",
            "Lets those modifications index tensors by batched tensors, as in eager.",
        ),
        "functorch_config": _module(
            "torch._functorch.config",
            "AOTAutograd's settings: in which modes it captures the backward.",
            "backward_pass_autocast patch",
        ),
        "functorch": _module(
            "torch._functorch", "The name of the package, by which calls of `torch.func` in a graph are recognized."
        ),
    },
    "Sizes and trees": {
        "pytree": _module(
            "torch.utils._pytree",
            "Flattens inputs and results as PyTorch's tracers do, with the classes that are registered there; "
            "`torch.utils.pytree` does not exist in 2.13.",
            "TreeSpec tree_flatten tree_is_leaf tree_leaves tree_map_only tree_unflatten",
        ),
        "OrderedSet": _class("torch.utils._ordered_set:OrderedSet", "The class of the set in a `GuardsSet`."),
        "FloorDiv": _class("torch.utils._sympy.functions:FloorDiv", "Division of symbolic sizes, as PyTorch writes it."),
        "PythonPrinter": _class(
            "torch.utils._sympy.printers:PythonPrinter",
            "Prints symbolic sizes as Python; sympy's printer does not know PyTorch's functions.",
        ),
    },
    "Capture": {
        "aot_export_module": _function(
            "torch._functorch.aot_autograd:aot_export_module",
            "Captures a program before dispatch, in a fake mode of ours; `torch.export` takes models, not Dynamo's graphs.",
        ),
        "aot_autograd": _function(
            "torch._dynamo.backends.common:aot_autograd",
            "AOTAutograd with a forward and a backward compiler, as PyTorch's documentation of custom backends shows it.",
        ),
        "OutputType": _class(
            "torch._functorch._aot_autograd.schemas:OutputType",
            "Which outputs AOTAutograd's wrappers return as they are.",
            "custom_function_view non_alias unsafe_view_alias",
        ),
        "TracingContext": _class(
            "torch._guards:TracingContext",
            "What AOTAutograd found about mutated inputs and outputs; it passes that to no compiler.",
            "try_get",
        ),
        "RestartAnalysis": _class(
            "torch._dynamo.exc:RestartAnalysis",
            "Dynamo's request to capture again, which has to pass through a backend's own handling of errors.",
        ),
        "Unsupported": _class("torch._dynamo.exc:Unsupported", "The error of a place where capture stops."),
        "ObservedException": _class(
            "torch._dynamo.exc:ObservedException", "The cause of an `Unsupported` if the program itself raises."
        ),
        "TorchRuntimeError": _class(
            "torch._dynamo.exc:TorchRuntimeError",
            "The error of an operator on tensors without data.",
        ),
        "InternalTorchDynamoError": _class(
            "torch._dynamo.exc:InternalTorchDynamoError", "The error of capture itself: the program may be right in eager."
        ),
        "FrameExecStrategy": _class(
            "torch._dynamo.types:FrameExecStrategy", "Part of the answer for a frame that stays in eager with all it calls."
        ),
        "FrameAction": _class("torch._dynamo.types:FrameAction", "Part of the same answer.", "SKIP"),
        "ConvertFrameReturn": _class(
            "torch._dynamo.types:ConvertFrameReturn", "The answer to Dynamo for a frame that stays in eager this time."
        ),
        "convert_frame": _module(
            "torch._dynamo.convert_frame",
            "Its function that captures a frame is wrapped: settings and a record for the hub's frames alone have no hook.",
            "_compile",
        ),
        "compile_lock": _value(
            "torch._dynamo.convert_frame:compile_lock", "Dynamo's lock, without which two threads would trace at once."
        ),
        "compiler": _module(
            "torch.compiler",
            "The flag that says that a compilation is in progress; 2.11 has no context manager that sets it.",
            "_is_compiling_flag",
        ),
        "graph_break_reasons": _value(
            "torch._dynamo.utils:graph_break_reasons",
            "Why capture stopped; `torch._dynamo.explain` would capture the model once more.",
        ),
        "dynamo_config": _module(
            "torch._dynamo.config",
            "Dynamo's settings; PyTorch's documentation names some of them, and no public module has them.",
            "accumulated_recompile_limit allow_rnn automatic_dynamic_shapes disable "
            "max_saved_pointers_for_recursive_dict_tags_check patch recompile_limit skip_nnmodule_hook_guards "
            "use_recursive_dict_tags_for_guards",
        ),
        "eval_frame": _module(
            "torch._dynamo.eval_frame",
            "The present stance; `torch.compiler.set_stance` sets it, and no public function reads it.",
            "_stance",
        ),
        "set_code_exec_strategy": _function(
            "torch._C._dynamo.eval_frame:set_code_exec_strategy",
            "Has frames of some code run as they are, whatever they call, while another compiler captures.",
        ),
        "TorchCompileWrapper": _class(
            "torch:_TorchCompileWrapper", "What `torch.compile` makes of a backend; the plans of one call are found by it."
        ),
        "DynamoContext": _class(
            "torch._dynamo.eval_frame:_TorchDynamoContext",
            "The object that lives as long as a compiled model, to keep what belongs to it.",
        ),
        "Hooks": _class(
            "torch._dynamo.hooks:Hooks",
            "What Dynamo calls while it captures a frame, to see its guards.",
        ),
        "OptimizedModule": _class("torch._dynamo.eval_frame:OptimizedModule", "The class of compiled modules."),
        "innermost_fn": _function("torch._dynamo.eval_frame:innermost_fn", "The function behind a compiled one."),
        "cached_backends": _value(
            "torch._dynamo.eval_frame:cached_backends",
            "Keeps each backend for good; entries of captured calls are dropped.",
        ),
        "get_cache_entry_list": _function(
            "torch._C._dynamo.eval_frame:_debug_get_cache_entry_list",
            "The code that Dynamo keeps for a code object, to call or drop it; `torch.compiler.reset` drops everything.",
        ),
        "reset_code": _function(
            "torch._C._dynamo.eval_frame:reset_code", "Drops what Dynamo keeps for one code object, to capture it again."
        ),
        "is_from_unspecialized_param_buffer_source": _function(
            "torch._dynamo.source:is_from_unspecialized_param_buffer_source",
            "Which inputs of a graph are a module's weights: Dynamo passes them like the call's inputs.",
        ),
        "ConstantSource": _class(
            "torch._dynamo.source:ConstantSource", "Where a symbol of ours comes from, for `ShapeEnv`."
        ),
        "fake_tensor_proxies": _value(
            "torch.fx.experimental.proxy_tensor:_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT",
            "Keeps the last traced graph alive, with its weights, until it is cleared.",
        ),
    },
    "Calls without Dynamo": {
        "Source": _class("torch._guards:Source", "Where Dynamo read a value, to watch each object on the way to it."),
        "Guard": _class("torch._guards:Guard", "One guard of a captured program."),
        "GuardsSet": _class(
            "torch._guards:GuardsSet", "Guards to be checked; the hub leaves out those that a watch implies."
        ),
        "CompileContext": _class(
            "torch._guards:CompileContext", "Which of Dynamo's compilations made a graph.", "current_compile_id"
        ),
        "GuardFilterEntry": _class(
            "torch._dynamo.types:GuardFilterEntry", "What the public option `guard_filter_fn` is called with."
        ),
        "dynamo_sources": _module(
            "torch._dynamo.source",
            "The classes of sources, each with its own rule of what is watched.",
            "AttrSource ConstDictKeySource ConstantSource ConvertIntSource DictGetItemSource DynamicScalarSource "
            "GenericAttrSource GetItemSource GlobalSource GradSource LocalSource NegateSource TensorProperty "
            "TensorPropertySource TypeDictSource TypeMROSource UnspecializedParamBufferSource",
        ),
        "get_closure_vars": _function(
            "torch._dynamo.guards:_get_closure_vars", "The functions that the names of sources call, to evaluate a source."
        ),
        "CheckFunctionManager": _class(
            "torch._dynamo.guards:CheckFunctionManager",
            "Makes Dynamo's own check, in C++, of some of its guards.",
            "id_ref",
        ),
        "GuardManagerWrapper": _class(
            "torch._dynamo.guards:GuardManagerWrapper",
            "Dynamo's guards of one program, of which calls check a part first.",
            "check_verbose collect_diff_guard_sources populate_diff_guard_manager",
        ),
        "DeletedGuardManagerWrapper": _class(
            "torch._dynamo.guards:DeletedGuardManagerWrapper", "Marks code of Dynamo's that is invalid."
        ),
        "TensorGuards": _class(
            "torch._C._dynamo.guards:TensorGuards", "Compares the forms of all inputs in one call, as Dynamo does."
        ),
        "GlobalStateGuard": _class(
            "torch._C._dynamo.guards:GlobalStateGuard",
            "Compares gradients, autocast, threads, default dtype, determinism and precision in one call.",
        ),
        "InstructionTranslator": _class(
            "torch._dynamo.symbolic_convert:InstructionTranslator",
            "What generated code does beside calling the graph, known only while Dynamo writes it.",
            "current_tx",
        ),
        "VariableTracker": _class(
            "torch._dynamo.variables.base:VariableTracker",
            "What Dynamo knows of a value, to find those of the result on which it makes no guard.",
            "visit",
        ),
        "is_fx_symbolic_tracing": _function(
            "torch.fx._symbolic_trace:is_fx_symbolic_tracing", "Whether `torch.fx` traces; `torch.compiler` does not say."
        ),
        "empty_strided_cpu": _function(
            "torch._C._dynamo.guards:_empty_strided_cpu",
            "Allocates as Inductor's code does, without PyTorch's dispatcher. Plugins work without it, a little slower.",
        ),
        "tensor_handles": _function(
            "torch._C:_aoti.unsafe_alloc_void_ptrs_from_tensors",
            "Pointers to weights for PyTorch's C functions, which read them without their Python objects.",
        ),
    },
    "State of a thread": {
        "is_any_autocast_enabled": _function(
            "torch._C:_is_any_autocast_enabled", "Asks for all devices at once; `torch.is_autocast_enabled` asks for one."
        ),
        "DisableAutocast": _class("torch._C:_DisableAutocast", "Disables it for all devices; `torch.autocast` takes one."),
        "EnableTorchFunction": _class(
            "torch._C:_EnableTorchFunction",
            "Puts back what Dynamo disables while it checks guards; the reverse is public.",
        ),
        "is_torch_function_enabled": _function(
            "torch._C:_is_torch_function_enabled", "Whether it is disabled; no public function says."
        ),
        "set_grad_enabled": _function(
            "torch._C:_set_grad_enabled", "The very function that Dynamo writes into graphs; the public form is a class."
        ),
        "len_torch_dispatch_stack": _function(
            "torch._C:_len_torch_dispatch_stack", "How many modes intercept operators: a plan would pass them by."
        ),
        "len_torch_function_stack": _function(
            "torch._C:_len_torch_function_stack", "How many modes intercept functions; 0 is what a plan needs."
        ),
        "peek_interpreter_stack": _function(
            "torch._C:_functorch.peek_interpreter_stack", "Whether a transform of `torch.func` is active."
        ),
        "dispatch_key": _function("torch._C:_dispatch_key_parse", "A dispatch key by name; the enumeration lacks some."),
        "is_dispatch_key_included": _function(
            "torch._C:_dispatch_tls_is_dispatch_key_included", "Whether `is_grads_batched` hands batches to a backward."
        ),
        "top_saved_tensors_hooks": _function(
            "torch._C:_autograd._top_saved_tensors_default_hooks", "Whether hooks on tensors saved for backward are set."
        ),
        "is_tracing": _function(
            "torch._C:_is_tracing", "`torch.jit.is_tracing` without Python code around it: asked in every call."
        ),
        "forward_ad": _module(
            "torch.autograd.forward_ad", "The level of forward gradients, a global variable.", "_current_level"
        ),
        "device_context": _module(
            "torch.utils._device", "The default device, a global variable: its object is compared.", "CURRENT_DEVICE"
        ),
        "global_device_context": _value(
            "torch:_GLOBAL_DEVICE_CONTEXT", "The mode of the default device, to restore what a plugin changed."
        ),
        "disable_current_modes": _function(
            "torch.utils._python_dispatch:_disable_current_modes",
            "Computes constants while a program is captured.",
        ),
        "get_current_dispatch_mode_stack": _function(
            "torch.utils._python_dispatch:_get_current_dispatch_mode_stack", "The modes, to see whether a plugin left one."
        ),
        "pop_mode": _function("torch.utils._python_dispatch:_pop_mode", "Removes a mode that a plugin left."),
        "push_mode": _function("torch.utils._python_dispatch:_push_mode", "Restores a mode that a plugin removed."),
        "pop_function_mode": _function(
            "torch.overrides:_pop_mode", "Hides the user's modes, such as a default device, from a plan and its making."
        ),
        "push_function_mode": _function("torch.overrides:_push_mode", "Puts them back."),
        "set_version_counters": _function(
            "torch._C:_autograd._unsafe_set_version_counter",
            "Restores an input's count of writes; `torch.autograd._unsafe_preserve_version_counter` calls it at its end.",
        ),
    },
    "State of a process": {
        "get_fp32_precision": _function(
            "torch._C:_get_fp32_precision_getter",
            "float32's precision at a place by name; publicly each place is an attribute of another object.",
        ),
        "set_fp32_precision": _function("torch._C:_set_fp32_precision_setter", "Sets that precision in workers."),
        "get_sdp_priority_order": _function(
            "torch._C:_get_sdp_priority_order", "The order in which implementations of attention are tried."
        ),
        "set_sdp_priority_order": _function(
            "torch._C:_set_sdp_priority_order", "Sets that order; publicly it is set within `sdpa_kernel` only."
        ),
    },
    "Measuring PyTorch itself": {
        "compile_fx": _function("torch._inductor.compile_fx:compile_fx", "Inductor, timed inside `torch.compile`."),
        "compile_fx_inner": _function(
            "torch._inductor.compile_fx:compile_fx_inner", "The part of Inductor that follows AOTAutograd, timed by itself."
        ),
        "inductor_config": _module(
            "torch._inductor.config",
            "Inductor's settings, for benchmarks that compare with it.",
            "force_disable_caches patch",
        ),
        "counters": _value("torch._dynamo.utils:counters", "How often Dynamo captured, for benchmarks."),
        "BackendCompilerFailed": _class(
            "torch._dynamo.exc:BackendCompilerFailed", "The error that wraps a backend's, for benchmarks that go on."
        ),
    },
}
"""For each purpose, the names by which other modules import them."""
ATTRIBUTES: Mapping[str, str] = {
    "torch:Tensor._version": "The count of writes to a tensor's memory: it shows changed weights and written inputs.",
    "torch:UntypedStorage._cdata": "The identity of a memory that has no address, such as a fake tensor's.",
    "torch._ops:OpOverload._schema": "An operator's arguments by name, with their types, defaults and aliasing.",
    "torch._dynamo.eval_frame:OptimizedModule._orig_mod": "The model behind a compiled module.",
    "torch.nn:Module._call_impl": "A module's call without what `Module.compile` put in front of it.",
    "torch.nn:Module._wrapped_call_impl": "A module's call, as its code: frames of it are no code of the user's.",
    "torch.nn:Module._compiled_call_impl": "What `Module.compile` put there.",
    "torch.library:custom_op._init_fn": "The function of a custom operator, whose module registers it.",
    "torch:compile._torchdynamo_orig_callable": "The function behind a compiled one, and a mark of compiled functions.",
    "torch._dynamo:OptimizedModule.dynamo_ctx.callback._torchdynamo_orig_backend": (
        "The backend behind the layers that Dynamo adds around it."
    ),
    "torch.compiler:disable._torchdynamo_disable": "A mark of functions that must not be captured.",
    "torch.compiler:disable._torchdynamo_disable_msg": "The reason that was given for it.",
}
"""Private attributes of PyTorch's objects, by the class, or by the function that returns the object. They are read where
the object is; no public attribute has the same."""
NAMES: Mapping[str, PrivateName] = {name: found for names in SECTIONS.values() for name, found in names.items()}
"""All of them."""


def optional(name: str) -> Any | None:
    """Return a name of the table, or None if this PyTorch does not have it: where there is nothing to do without it."""
    try:
        return _found(name)
    except PrivateNameError:
        return None


def _missing(name: str, private: PrivateName) -> PrivateNameError:
    version = getattr(sys.modules.get("torch"), "__version__", "unknown")
    return PrivateNameError(
        f"PyTorch {version} has no {private.dotted}, a private name that the hub uses (as {name}): {private.reason} "
        f"It was found in PyTorch {', '.join(TRIED)}",
        hint="install one of these versions of PyTorch, or a hub for yours (docs/reference/private-pytorch.md)",
    )


def _found(name: str) -> Any:
    private = NAMES[name]
    try:
        return pkgutil.resolve_name(private.path)
    except (AttributeError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("torch."):
            raise  # torch itself, or a library that it needs
        raise _missing(name, private) from error


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = _found(name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *NAMES})
