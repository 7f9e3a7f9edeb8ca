"""Compares what a captured program read from Python with what is there now.

CPython 3.11 and 3.12 count every change of a dict in its version tag (PEP 509), and nearly all of what a model is made of
lies in dicts. The comparison is written in C (`native.c`); where that module was not built, or this Python's tags do not do
what is relied on, `hub.compile` leaves every call to Dynamo and says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch._C._dynamo.guards import TensorGuards

from hub.direct.reads import MISSING, Reads

if TYPE_CHECKING:
    from hub.direct.native import Comparison

try:
    native: Any = importlib.import_module("hub.direct.native")
except ImportError:  # not built
    native = None


class Watch:
    """What a program read, as it was when this was made."""

    __slots__ = ("holds", "objects", "tensors")

    def __init__(self, reads: Reads) -> None:
        self.holds: Callable[[], bool] = _comparison(reads).holds
        """Return whether everything is as it was, tensors aside: those are compared with a call's inputs."""
        self.tensors: tuple[torch.Tensor, ...] = tuple(reads.tensors.values())
        """The tensors that it read: parameters, buffers and others."""
        self.objects = frozenset(reads.seen | reads.walked)
        """Identities of all that it read: what a result holds of it is not made anew in each call."""


def forms_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return what tells whether tensors have the forms of these: types, sizes, strides, devices, needs of gradients.

    It also says no where one tensor stands at two places.
    """
    sizes, strides = [list(tensor.shape) for tensor in tensors], [list(tensor.stride()) for tensor in tensors]
    return cast("Any", TensorGuards)(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


have_no_attributes: Callable[[tuple[Any, ...]], bool] = native.have_no_attributes if native else bool
"""Return whether no tensor has attributes of its own: Dynamo reads those that `torch._dynamo.mark_dynamic` sets."""


def _comparison(reads: Reads) -> Comparison:
    keyed = tuple((names, tuple(rows), tuple(rows.values())) for names, rows in reads.keyed.values())
    parts = (reads.objects, reads.lists, reads.cells, reads.functions)
    dicts, objects, lists, cells, functions = (tuple(part.values()) for part in (reads.dicts, *parts))
    return native.Comparison(dicts, keyed, objects, lists, cells, functions, tuple(reads.classes), MISSING)


def why_unwatched() -> str:
    """Return why nothing can be watched in this process; "" where it can. Tries every way of changing an object."""
    if native is None:
        return "this installation has no compiled part for this Python (hub.direct.native)"
    return "" if all(_is_noticed(change) for change in _CHANGES) else "this Python does not count the changes of dicts"


def _is_noticed(change: Callable[[Any], Any]) -> bool:
    probe: Any = type("Probe", (), {})()
    probe.first = object()
    watch = Watch(Reads(dicts={0: vars(probe)}))
    if not watch.holds():
        return False
    change(probe)
    return not watch.holds()


def _store_often(probe: Any) -> None:
    """Store in a loop: CPython writes attributes in another way once a line has run often."""
    for number in range(64):
        probe.first = number + 1000


def _attributes(probe: Any) -> dict[str, Any]:
    return probe.__dict__


_CHANGES: tuple[Callable[[Any], Any], ...] = (
    _store_often,
    lambda probe: setattr(probe, "second", 2),
    lambda probe: delattr(probe, "first"),
    lambda probe: _attributes(probe).update(first=2),
    lambda probe: _attributes(probe).clear(),
    lambda probe: _attributes(probe).pop("first"),
    lambda probe: _attributes(probe).setdefault("second", 2),
    lambda probe: _attributes(probe).__ior__({"second": 2}),
)
