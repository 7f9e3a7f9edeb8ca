"""`hub`: captures a PyTorch model, lets every installed compiler bid for parts of it, and runs the cheapest proven plan.

`torch.compile(model, backend="hub")` needs no import. The names below are loaded on first use, so `import hub` is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hub.discovery.listing import list_backends
    from hub.errors import HubError, HubWarning
    from hub.frontend.direct.compile import compile  # noqa: A004 - the name that torch.compile uses
    from hub.frontend.explaining import explain
    from hub.frontend.freezing import freeze
    from hub.frontend.ownership import plans, refresh, wait
    from hub.plan import Plan
    from hub.plugin.backend import Backend, BackendInfo, CompileSettings, Executable, Proposal
    from hub.plugin.cost import Cost
    from hub.plugin.graph import Cluster, Graph
    from hub.plugin.hooks import hookimpl
    from hub.plugin.table import OperatorTable, Support

_HOME = {
    "Backend": "hub.plugin.backend",
    "BackendInfo": "hub.plugin.backend",
    "Cluster": "hub.plugin.graph",
    "CompileSettings": "hub.plugin.backend",
    "Cost": "hub.plugin.cost",
    "Executable": "hub.plugin.backend",
    "Graph": "hub.plugin.graph",
    "HubError": "hub.errors",
    "HubWarning": "hub.errors",
    "OperatorTable": "hub.plugin.table",
    "Plan": "hub.plan",
    "Proposal": "hub.plugin.backend",
    "Support": "hub.plugin.table",
    "compile": "hub.frontend.direct.compile",
    "explain": "hub.frontend.explaining",
    "freeze": "hub.frontend.freezing",
    "hookimpl": "hub.plugin.hooks",
    "list_backends": "hub.discovery.listing",
    "plans": "hub.frontend.ownership",
    "refresh": "hub.frontend.ownership",
    "wait": "hub.frontend.ownership",
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
