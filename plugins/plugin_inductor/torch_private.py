"""PyTorch's private names that this plugin uses, each with the reason.

PyTorch has two public ways to Inductor: `torch.compile`, which adds guards and run-time wrappers of its own, and packages
of exported programs. The hub has checked the inputs already, so the plugin calls Inductor's graph compiler itself.
"""
# ruff: noqa: F401 - other modules of this plugin import them from here
# pyright: reportUnusedImport=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

# Where a symbol of ours comes from, for `ShapeEnv`.
from torch._dynamo.source import ConstantSource

# A functional graph with chosen decompositions in a fake mode of ours; `torch.export` takes models.
from torch._functorch.aot_autograd import aot_export_module

# No tracing context, so that compiling does not read that of a capture around it.
from torch._guards import tracing as in_context

# Its function that runs the C++ compiler is replaced by one that writes whole files only.
from torch._inductor import cpp_builder

# The lists of all programs, from which ours are removed; and the loader of a saved program's library.
from torch._inductor.codecache import CppWrapperCodeCache, PyCodeCache

# Steps of freezing, which publicly reads weights from a tracing context.
from torch._inductor.constant_folding import constant_fold

# Arguments, results and state of the graph compiler.
from torch._inductor.cudagraph_utils import BoxedDeviceIndex
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph

# The folder of libraries, to check that no other user can write to it.
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

# Another argument; and what Inductor wraps around a program with aligned inputs, for programs that are read from a file.
from torch._inductor.utils import BoxedBool, align_inputs_from_check_idxs
from torch._inductor.virtualized import V

# Tensors without data, with symbolic sizes: the meta device has no shape environment.
from torch._subclasses.fake_tensor import FakeTensorMode

# The set that this wrapper takes.
from torch.utils._ordered_set import OrderedSet

# The caller's modes must not intercept what compiling runs.
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

# Ranges of symbolic sizes, which `ShapeEnv` takes and returns.
from torch.utils._sympy.value_ranges import ValueRanges

from plugin_inductor.quiet import ignored_warnings

# Modules that use torch.jit, which torch itself deprecates: they must load even if warnings are errors.
with ignored_warnings(DeprecationWarning):
    # The graph compiler.
    from torch._inductor import compile_fx

    # Further steps of freezing.
    from torch._inductor.freezing import convert_conv_weights_to_channels_last

    # Its choice of a library for weights is replaced by one that times them.
    from torch._inductor.fx_passes import mkldnn_fusion

if TYPE_CHECKING:  # PyTorch's own annotations of these are missing or incomplete
    bound_sympy: Callable[..., ValueRanges[Any]]
    config: Any
    freezing_passes: Callable[..., None]
    inductor: Any
    int_oo: Any
    view_to_reshape: Callable[..., None]
else:
    # Inductor by itself, for `hub bench`: exported models and their packages.
    from torch import _inductor as inductor

    # `torch.compile` takes settings by name, but for a whole model.
    from torch._inductor import config

    # Steps of freezing again.
    from torch._inductor.fx_passes.freezing_patterns import freezing_passes
    from torch._inductor.fx_passes.post_grad import view_to_reshape

    # Ranges again.
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import bound_sympy

# The public forms of autocast ask about one device, or change it for one; that of gradients is a class, and slower.
DisableAutocast = torch._C._DisableAutocast  # pyright: ignore[reportPrivateUsage]
is_any_autocast_enabled = torch._C._is_any_autocast_enabled  # pyright: ignore[reportPrivateUsage]
set_grad_enabled = torch._C._set_grad_enabled  # pyright: ignore[reportPrivateUsage]

disable_current_modes = _disable_current_modes

# The first passes, which `compile_fx` runs between AOTAutograd and its inner function.
recursive_joint_graph_passes = compile_fx._recursive_joint_graph_passes  # pyright: ignore[reportPrivateUsage]
