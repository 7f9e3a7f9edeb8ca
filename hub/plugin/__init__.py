"""The names that a plugin may import, next to `hub.toolkit` for generating code and `hub.testing` for tests.

Everything else of the hub may move or change from one version to the next. These names change only with a new
`API_VERSION`; `docs/reference/plugin-api.md` says what each is and what is promised. Each name is loaded on first use, so a
plugin's hooks import neither torch nor anything that needs it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hub.bench.models import load_model
    from hub.cache.compilers import compiler_folder
    from hub.cache.database import choices_state
    from hub.cache.measurements import Choice, Measurements
    from hub.cache.trust import distrust, distrust_root
    from hub.cache.tuning import DAMAGED, note_use, tuning_folder
    from hub.capture.inference import capture_inference
    from hub.capture.sources import weight_positions
    from hub.capture.traces import forget_last_trace
    from hub.cli.flags import Batch, ModelName, command
    from hub.config.options import resolve
    from hub.errors import (
        CacheError,
        CaptureError,
        CompileError,
        ConstantsRefused,
        HubError,
        HubWarning,
        InputRefused,
        LimitExceeded,
        OptionError,
        PluginError,
        PluginLoadError,
        RunError,
        WorkerError,
    )
    from hub.frontend.dynamo import restricted
    from hub.partition.extract import extract
    from hub.partition.group import EAGER, Group, group, group_alone
    from hub.partition.proposals import matches
    from hub.plugin.backend import (
        API_VERSION,
        Backend,
        BackendInfo,
        CompileSettings,
        Executable,
        Proposal,
        compile_failure,
    )
    from hub.plugin.canonical import tensor_digest
    from hub.plugin.conditions import (
        equal_windows,
        floating_result,
        has_dims,
        heads_match,
        inference,
        integer_indices,
        no_dropout,
        not_ceil,
        not_empty,
        on_cpu,
        one_of,
        only_output,
        plain,
        same_rank,
        static_dim,
        static_input,
        unrollable_lstm,
    )
    from hub.plugin.cost import Cost
    from hub.plugin.graph import Cluster, Graph, ScalarSpec, Spec, TensorSpec, hint, output_arguments, priced_size, spec_of
    from hub.plugin.hooks import hookimpl
    from hub.plugin.memory import empty_cpu
    from hub.plugin.probing import run_addition
    from hub.plugin.settings import BackendSettings, checked_settings
    from hub.plugin.table import (
        ACCEPTED,
        Condition,
        OperatorTable,
        Support,
        absent,
        argument,
        attribute,
        declared_arguments,
        dtype_name,
        dtypes,
        elements,
        is_symbolic,
        is_weight,
        operator_name,
        rank,
        refused,
        static,
        tensors_of,
        value_of,
    )
    from hub.pricing.features import kind_of
    from hub.pricing.roofline import Peaks, cluster_estimate, peaks
    from hub.process.environment import environment_now, seen_by_libraries
    from hub.process.threads import using_threads
    from hub.process.tracing import tracing
    from hub.report.columns import columns
    from hub.report.numbers import count, duration
    from hub.verification.inputs import copied
    from hub.workers.channel import Worker, serve
    from hub.workers.transfer import dump_module, load_module

__all__ = [
    "ACCEPTED",
    "API_VERSION",
    "DAMAGED",
    "EAGER",
    "Backend",
    "BackendInfo",
    "BackendSettings",
    "Batch",
    "CacheError",
    "CaptureError",
    "Choice",
    "Cluster",
    "CompileError",
    "CompileSettings",
    "Condition",
    "ConstantsRefused",
    "Cost",
    "Executable",
    "Graph",
    "Group",
    "HubError",
    "HubWarning",
    "InputRefused",
    "LimitExceeded",
    "Measurements",
    "ModelName",
    "OperatorTable",
    "OptionError",
    "Peaks",
    "PluginError",
    "PluginLoadError",
    "Proposal",
    "RunError",
    "ScalarSpec",
    "Spec",
    "Support",
    "TensorSpec",
    "Worker",
    "WorkerError",
    "absent",
    "argument",
    "attribute",
    "capture_inference",
    "checked_settings",
    "choices_state",
    "cluster_estimate",
    "columns",
    "command",
    "compile_failure",
    "compiler_folder",
    "copied",
    "count",
    "declared_arguments",
    "distrust",
    "distrust_root",
    "dtype_name",
    "dtypes",
    "dump_module",
    "duration",
    "elements",
    "empty_cpu",
    "environment_now",
    "equal_windows",
    "extract",
    "floating_result",
    "forget_last_trace",
    "group",
    "group_alone",
    "has_dims",
    "heads_match",
    "hint",
    "hookimpl",
    "inference",
    "integer_indices",
    "is_symbolic",
    "is_weight",
    "kind_of",
    "load_model",
    "load_module",
    "matches",
    "no_dropout",
    "not_ceil",
    "not_empty",
    "note_use",
    "on_cpu",
    "one_of",
    "only_output",
    "operator_name",
    "output_arguments",
    "peaks",
    "plain",
    "priced_size",
    "rank",
    "refused",
    "resolve",
    "restricted",
    "run_addition",
    "same_rank",
    "seen_by_libraries",
    "serve",
    "spec_of",
    "static",
    "static_dim",
    "static_input",
    "tensor_digest",
    "tensors_of",
    "tracing",
    "tuning_folder",
    "unrollable_lstm",
    "using_threads",
    "value_of",
    "weight_positions",
]

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "The contract": {
        "hub.plugin.backend": "API_VERSION Backend BackendInfo CompileSettings Executable Proposal compile_failure",
        "hub.plugin.cost": "Cost",
        "hub.plugin.hooks": "hookimpl",
        "hub.plugin.probing": "run_addition",
        "hub.plugin.settings": "BackendSettings checked_settings",
    },
    "What a backend is shown": {
        "hub.plugin.graph": "Cluster Graph ScalarSpec Spec TensorSpec hint output_arguments priced_size spec_of",
        "hub.plugin.canonical": "tensor_digest",
    },
    "Operator tables": {
        "hub.plugin.table": (
            "ACCEPTED Condition OperatorTable Support absent argument attribute declared_arguments dtype_name dtypes "
            "elements is_symbolic is_weight operator_name rank refused static tensors_of value_of"
        ),
        "hub.plugin.conditions": (
            "equal_windows floating_result has_dims heads_match inference integer_indices no_dropout not_ceil not_empty "
            "on_cpu one_of only_output plain same_rank static_dim static_input unrollable_lstm"
        ),
    },
    "Errors": {
        "hub.errors": (
            "CacheError CaptureError CompileError ConstantsRefused HubError HubWarning InputRefused LimitExceeded "
            "OptionError PluginError PluginLoadError RunError WorkerError"
        ),
    },
    "What is kept between runs": {
        "hub.cache.compilers": "compiler_folder",
        "hub.cache.database": "choices_state",
        "hub.cache.measurements": "Choice Measurements",
        "hub.cache.trust": "distrust distrust_root",
        "hub.cache.tuning": "DAMAGED note_use tuning_folder",
    },
    "Prices": {
        "hub.pricing.features": "kind_of",
        "hub.pricing.roofline": "Peaks cluster_estimate peaks",
    },
    "Memory, native libraries, tracing, and processes of a plugin's own": {
        "hub.capture.traces": "forget_last_trace",
        "hub.plugin.memory": "empty_cpu",
        "hub.process.environment": "environment_now seen_by_libraries",
        "hub.process.threads": "using_threads",
        "hub.process.tracing": "tracing",
        "hub.verification.inputs": "copied",
        "hub.workers.channel": "Worker serve",
        "hub.workers.transfer": "dump_module load_module",
    },
    "Entry points from PyTorch and the command line": {
        "hub.bench.models": "load_model",
        "hub.capture.inference": "capture_inference",
        "hub.capture.sources": "weight_positions",
        "hub.cli.flags": "Batch ModelName command",
        "hub.config.options": "resolve",
        "hub.frontend.dynamo": "restricted",
        "hub.partition.extract": "extract",
        "hub.partition.group": "EAGER Group group group_alone",
        "hub.partition.proposals": "matches",
        "hub.report.columns": "columns",
        "hub.report.numbers": "count duration",
    },
}
"""For each purpose, the modules and the names in them."""
_HOME = {name: module for homes in SECTIONS.values() for module, names in homes.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hub.plugin' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
