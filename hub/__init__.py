"""`hub`: captures a PyTorch model, lets every installed compiler bid for pieces of it, and runs the cheapest proven plan.

`torch.compile(model, backend="hub")` needs no import. The names below are loaded when first used, so `import hub` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hub.backend import Backend, BackendInfo, CompileSettings, Executable, Proposal
    from hub.cost import Cost
    from hub.direct.compile import compile  # noqa: A004 - as torch.compile is called
    from hub.errors import HubError, HubWarning
    from hub.explaining import explain
    from hub.freezing import freeze
    from hub.graph import Cluster, Graph
    from hub.hookspecs import hookimpl
    from hub.listing import list_backends
    from hub.ownership import plans, refresh, wait
    from hub.plan import Plan
    from hub.support import OperatorTable, Support

_HOME = {
    "Backend": "hub.backend",
    "BackendInfo": "hub.backend",
    "Cluster": "hub.graph",
    "CompileSettings": "hub.backend",
    "Cost": "hub.cost",
    "Executable": "hub.backend",
    "Graph": "hub.graph",
    "HubError": "hub.errors",
    "HubWarning": "hub.errors",
    "OperatorTable": "hub.support",
    "Plan": "hub.plan",
    "Proposal": "hub.backend",
    "Support": "hub.support",
    "compile": "hub.direct.compile",
    "explain": "hub.explaining",
    "freeze": "hub.freezing",
    "hookimpl": "hub.hookspecs",
    "list_backends": "hub.listing",
    "plans": "hub.ownership",
    "refresh": "hub.ownership",
    "wait": "hub.ownership",
}

__all__ = [
    "Backend",
    "BackendInfo",
    "Cluster",
    "CompileSettings",
    "Cost",
    "Executable",
    "Graph",
    "HubError",
    "HubWarning",
    "OperatorTable",
    "Plan",
    "Proposal",
    "Support",
    "compile",
    "explain",
    "freeze",
    "hookimpl",
    "list_backends",
    "plans",
    "refresh",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hub' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
