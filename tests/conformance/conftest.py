"""A small backend that keeps every promise, unless a fault says which one to break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

TOY = '''
import ctypes
import os
import tempfile
import threading
import time
from pathlib import Path

from hub import Backend, BackendInfo, Executable, hookimpl
from hub.plugin.table import ACCEPTED, OperatorTable, dtypes

FAULT = {fault!r}

if FAULT == "heavy listing":
    import torch
if FAULT == "crash at import":
    ctypes.string_at(0)

NAMES = ("aten.linear.default", "aten.relu.default", "aten.tanh.default", "aten.add.Tensor")
DTYPES = ("float32", "int8") if "int8" in FAULT else ("float32",)
ROWS = dict.fromkeys(NAMES, ())
if FAULT == "int8 declared in vain":
    ROWS["aten.relu.default"] = (
        dtypes("float32", "int8"),
        lambda node: "not today" if "int8" in str(node.meta["val"].dtype) else None,
    )
OPERATORS = OperatorTable(ROWS, everywhere=(dtypes(*DTYPES),))


@hookimpl
def hub_backends():
    facts = dict(
        name="faulty", factory="hub_faulty:create", summary="a toy", operators="hub_faulty:OPERATORS",
        dynamic_shapes=True,
    )
    if "int8" in FAULT:
        facts["dtypes"] = DTYPES
    if FAULT == "unknown dtype":
        facts["dtypes"] = ("float32", "float33")
    if FAULT == "untrue dtype":
        facts["dtypes"] = ("float32", "int64")
    if FAULT == "other api":
        facts["api"] = (9, 0)
    if FAULT == "order of a set":
        facts["devices"] = tuple({{"cpu", "cuda", "xpu", "mps", "hpu", "mtia", "ipu", "maia"}})
    return [BackendInfo(**facts)]


def create():
    if FAULT == "exit at creation":
        raise SystemExit(3)
    return Toy()


class Toy(Backend):
    known = {{}}
    compiling = threading.local()

    def probe(self):
        if FAULT == "crash in the probe":
            ctypes.string_at(0)
        return ACCEPTED

    def supports(self, node):
        if FAULT == "no verdict":
            return True
        if FAULT == "undeclared operator" and str(node.target) == "aten.neg.default":
            return ACCEPTED
        return OPERATORS.supports(node)

    def compile(self, cluster, settings):
        is_large = len(cluster.nodes) > 2
        if any(str(node.target) == "aten.add.Tensor" for node in cluster.nodes):
            if FAULT == "cannot compile add":
                raise NotImplementedError("add is not there yet")
            if FAULT == "crash in compile":
                ctypes.string_at(0)
            if FAULT == "hang in compile":
                time.sleep(1000)
        if FAULT == "lock stays" and is_large:
            return locked(cluster)
        if FAULT == "state stays" and is_large:
            if getattr(self.compiling, "now", False):
                raise RuntimeError("a compilation is under way")
            self.compiling.now = True
            time.sleep(0.1)
            self.compiling.now = False
        if FAULT == "weights left out of a key":
            return self.known.setdefault(cluster.structure_digest, Run(cluster))
        return Run(cluster)

    def load(self, folder, cluster, settings):
        text = (folder / "digest.txt").read_text()
        if FAULT == "crash on damage" and not text:
            ctypes.string_at(0)
        if FAULT == "path kept":
            text = Path((folder / "where.txt").read_text(), "digest.txt").read_text()
        run = Run(cluster)
        if text != cluster.digest:
            if FAULT != "damage unseen":
                raise ValueError("another cluster")
            run.is_wrong = True
        run.is_wrong |= FAULT == "wrong after loading"
        return run


if FAULT == "wrong signature":
    Toy.estimate = lambda self, cluster: None


def locked(cluster):
    """Takes a lock that nobody breaks."""
    lock = Path(tempfile.gettempdir()) / "faulty.lock"
    mine = str(os.getpid())
    if lock.exists() and lock.read_text() != mine:
        raise RuntimeError(f"{{lock}} is there: another process compiles")
    lock.write_text(mine)
    time.sleep(0.1)
    lock.unlink(missing_ok=True)
    return Run(cluster)


class Run(Executable):
    def __init__(self, cluster):
        self.cluster = cluster
        self.own = threading.local()
        self.is_busy = self.is_wrong = False
        self.calls = 0

    def __call__(self, *inputs):
        import torch

        self.calls += 1
        is_large = len(self.cluster.nodes) > 2
        names = [str(node.target) for node in self.cluster.nodes]
        if FAULT == "strides unread":
            inputs = [as_if_contiguous(value) for value in inputs]
        if FAULT == "NaN lost" and names == ["aten.relu.default"]:
            inputs = [torch.nan_to_num(value, nan=0.0, posinf=float("inf"), neginf=float("-inf")) for value in inputs]
        if FAULT == "one size" and any(
            not isinstance(size, int) and int(size.node.hint) != given
            for spec, value in zip(self.cluster.inputs, inputs)
            for size, given in zip(getattr(spec, "shape", ()), getattr(value, "shape", ()))
        ):
            raise RuntimeError("compiled for another size")
        if FAULT == "one caller":
            if self.is_busy:
                raise RuntimeError("busy")
            self.is_busy = True
            time.sleep(0.0002)
        if FAULT == "files left open" and is_large:
            os.open(os.devnull, os.O_RDONLY)
        if FAULT == "threads left" and is_large:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        with torch.no_grad():
            outputs = [value.clone() for value in self.cluster.module(*inputs)]
            if FAULT == "input written to" and names == ["aten.relu.default"]:
                inputs[0].relu_()
        if FAULT == "buffer handed out again":
            outputs = self.in_own_buffers(outputs)
        if FAULT == "one bit off now and then" and is_large and self.calls % 2:
            outputs = [torch.nextafter(value, torch.full_like(value, 9.0)) for value in outputs]
        if FAULT == "wrong in int8" and names == ["aten.relu.default"]:
            outputs = [value + (value.dtype is torch.int8) for value in outputs]
        if self.is_wrong:
            outputs = [value + 1 for value in outputs]
        self.is_busy = False
        return outputs

    def in_own_buffers(self, outputs):
        for index, value in enumerate(outputs):
            key = f"{{index}} {{value.shape}}"
            buffer = self.own.__dict__.setdefault(key, value)
            buffer.copy_(value)
            outputs[index] = buffer
        return outputs

    def save(self, folder):
        (folder / "digest.txt").write_text(self.cluster.digest)
        if FAULT == "path kept":
            (folder / "where.txt").write_text(str(folder))


def as_if_contiguous(value):
    """Reads elements from where they would be if the tensor were contiguous."""
    import torch

    room = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
    if value.numel() > room:
        return value
    steps = torch.empty(value.shape, device="meta").stride()
    return value.as_strided(value.shape, steps)
'''

Toy = Callable[[str], None]


@pytest.fixture
def install_toy(install_plugin: Any) -> Toy:
    """Return `install(fault)`, which installs the toy `faulty` with this fault; none for ""."""
    return lambda fault: install_plugin("faulty", TOY.format(fault=fault))
