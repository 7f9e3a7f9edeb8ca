"""Compare what a captured program read from Python with the present state.

CPython 3.11 and 3.12 count every change of a dict in its version tag (PEP 509), and nearly all state of a model lies in
dicts. The comparison is written in C (`native.c`). If that module was not built, or this Python's tags do not work as
expected, `hub.compile` sends every call through Dynamo and reports that.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from hub.frontend.direct.reads import MISSING, Reads, Unwatched
from hub.torch_private import tensor_handles

if TYPE_CHECKING:
    from hub.frontend.direct.native import Comparison

_LIBRARIES = Path(torch.__file__).parent / "lib"
_FUNCTIONS = (
    *(f"aoti_torch_{name}" for name in ("get_data_ptr", "get_dim", "get_sizes", "get_strides", "get_dtype")),
    "aoti_torch_delete_tensor_object",
    "_ZNK2at10TensorBase8_versionEv",
    "_ZNK3c1010TensorImpl13requires_gradEv",
    *(f"aoti_torch_get_device_{name}" for name in ("type", "index")),
)
"""Functions of PyTorch's C interface (torch/csrc/inductor/aoti_torch/c/shim.h), and two C++ functions without a counterpart
there, by their mangled names on Linux and macOS: `at::TensorBase::_version() const` and
`c10::TensorImpl::requires_grad() const`. `why_unwatched` tests their results."""


def _interface() -> tuple[int, ...] | None:
    """Return the addresses of those functions; None if they cannot be found in this PyTorch."""
    try:
        libraries = [ctypes.CDLL(str(_LIBRARIES / f"lib{name}.so")) for name in ("torch_cpu", "c10")]
    except OSError:
        return None
    found = [_address(name, libraries) for name in _FUNCTIONS]
    return None if None in found else tuple(cast("list[int]", found))


def _address(name: str, libraries: Sequence[ctypes.CDLL]) -> int | None:
    """Return the address of a function; None if no library has it."""
    for library in libraries:
        with contextlib.suppress(AttributeError):
            return ctypes.cast(library[name], ctypes.c_void_p).value
    return None


_INTERFACE = _interface()

try:
    native: Any = importlib.import_module("hub.frontend.direct.native")
except ImportError:  # not built
    native = None


CHANGED, WRITTEN, SAME = range(3)
"""Results of `Watch.compare`."""


class Watch:
    """A snapshot of what a program read, to compare with the present state."""

    __slots__ = ("_stamps", "compare", "objects", "tensors")

    def __init__(self, reads: Reads) -> None:
        self.tensors: tuple[torch.Tensor, ...] = tuple(reads.tensors.values())
        """The tensors that the program read: parameters, buffers and others."""
        self.objects = frozenset(reads.seen.keys() | reads.walked)
        """Identities of all objects that the program read. If a result contains one, it is not new in each call."""
        self._stamps = native.Stamps(
            self.tensors, tuple(tensor_handles(list(self.tensors))), _INTERFACE, _comparison(reads)
        )
        self.compare: Callable[[], int] = self._stamps.compare
        """Return CHANGED if a guard might fail, WRITTEN if only tensors' contents may have changed, else SAME.

        Contents are compared by PyTorch's version counters and by address.
        """

    def renew(self) -> None:
        """Accept the present contents of tensors as the expected ones."""
        self._stamps.renew()

    @property
    def n_renewals(self) -> int:
        """Number of times that tensors' contents were updated. What was built for earlier contents is outdated.

        It changes together with the stamps: between the two, another thread could take old contents for the present ones.
        """
        return self._stamps.n_renewals


def watched(walk: Callable[[], Reads | Unwatched]) -> Watch | Unwatched:
    """Return a watch of what `walk` finds, or why there is none.

    Another thread may replace an object between the walk and the snapshot, in which the new one would be missing. So the
    snapshot counts only if later walks lead to the objects that it has.
    """
    found = walk()
    if isinstance(found, Unwatched):
        return found
    watch, second, third = Watch(found), walk(), walk()
    if isinstance(second, Unwatched) or isinstance(third, Unwatched) or not found.has_all(second, third):
        return Unwatched("", "what the model reads changed while it was noted")
    return watch


def _comparison(reads: Reads) -> Comparison:
    keyed = tuple((names, tuple(rows), tuple(rows.values())) for names, rows in reads.keyed.values())
    parts = (reads.objects, reads.lists, reads.cells, reads.functions)
    dicts, objects, lists, cells, functions = (tuple(part.values()) for part in (reads.dicts, *parts))
    return native.Comparison(dicts, keyed, objects, lists, cells, functions, tuple(reads.classes), (), MISSING)


def why_unwatched() -> str:
    """Return why nothing can be watched in this process; "" if it can. Try every way of changing an object."""
    if native is None:
        return "this installation has no compiled part for this Python (hub.frontend.direct.native)"
    if _INTERFACE is None:
        return "this PyTorch keeps its C interface in another place"
    if not all(_is_noticed(change) for change in _CHANGES):
        return "this Python does not count the changes of dicts"
    return "" if _are_writes_counted() else "this PyTorch does not count the writes to tensors"


def _is_noticed(change: Callable[[Any], Any]) -> bool:
    probe: Any = type("Probe", (), {})()
    probe.first = object()
    watch = Watch(Reads(dicts={0: vars(probe)}))
    if watch.compare() == CHANGED:
        return False
    change(probe)
    return watch.compare() == CHANGED


@functools.cache
def _are_writes_counted() -> bool:
    """Try every way of changing a tensor, in a separate thread, which has none of the user's modes."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: all(_is_noticed_of_tensor(*one) for one in _TENSOR_CHANGES)).result()


def _is_noticed_of_tensor(change: Callable[[torch.Tensor], Any], expected: int) -> bool:
    probe = torch.nn.Parameter(torch.zeros(2, 3))
    watch = Watch(Reads(tensors={id(probe): probe}))
    if watch.compare() != SAME:
        return False
    change(probe)
    return watch.compare() == expected


def _store_often(probe: Any) -> None:
    """Store an attribute in a loop: CPython specializes the instruction once it has run often."""
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
_TENSOR_CHANGES: tuple[tuple[Callable[[torch.Tensor], Any], int], ...] = (
    (lambda probe: probe.detach().add_(1), WRITTEN),
    (lambda probe: setattr(probe, "data", torch.ones(2, 3)), WRITTEN),
    (lambda probe: probe.requires_grad_(False), CHANGED),
    (lambda probe: setattr(probe, "data", torch.zeros(3, 2)), CHANGED),
)
