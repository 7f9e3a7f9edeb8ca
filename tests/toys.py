"""A plugin that runs clusters in eager, as text for `install_plugin`; a test sets what differs."""

from __future__ import annotations

import textwrap

_SOURCE = """
import os, pathlib
from hub import Backend, BackendInfo, Executable, Support, hookimpl

class Program(Executable):
    def __init__(self, cluster): self.cluster = cluster
    def __call__(self, *inputs):
        import torch
        with torch.no_grad():
            return self.cluster.module(*inputs)
    def save(self, folder): (folder / "program").write_text("saved")

class Toy(Backend):
    def supports(self, node): return {supports}
    def compile(self, cluster, settings):
{compiling}
        return Program(cluster)
    if {saveable}:
        def load(self, folder, cluster, settings):
            assert (folder / "program").read_text() == "saved"
            return Program(cluster)

def create(): return Toy()

@hookimpl
def hub_backends():
    return [BackendInfo(name="{name}", factory="hub_{name}:create", summary="runs clusters in eager")]
"""


def toy(name: str = "toy", *, supports: str = "Support(True)", compiling: str = "pass", saveable: bool = False) -> str:
    """Return the text. `supports` is an expression of `node`; `compiling` are statements that begin a compilation."""
    statements = textwrap.indent(textwrap.dedent(compiling).strip(), " " * 8)
    return _SOURCE.format(name=name, supports=supports, compiling=statements, saveable=saveable)
