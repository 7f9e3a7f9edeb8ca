"""The device's library, `libmicrondla.so`, through its C interface: types, result codes, ownership.

Facts from the interface: contexts are opaque pointers; 0 is success, -1 an error, -99 "would block"; shapes are returned
through pointers. Assumptions where the interface is silent: a context that a call returns replaces the one passed (they
are equal in practice), arrays of shapes belong to the library and are copied immediately, and the buffers of a pending
call must stay in place until its result has arrived.
"""

from __future__ import annotations

import ctypes as c
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hub.plugin import (
    CompileError,
    HubError,
    PluginLoadError,
    RunError,
)

from .settings import LIBRARY

OLDEST = (2019, 1)
"""First version with the functions declared here; an assumption, because Micron documents none."""
IN_FLIGHT = 2
"""Number of inputs in flight at once: one is computed while the next one is sent."""
ERROR, WOULD_BLOCK = -1, -99
_NAME = "mdla"
_NEXT = "set HUB_MDLA_LIBRARY to the library of Micron's SDK, or HUB_MDLA_SIMULATOR=1 for the software device"

Array = np.ndarray[Any, np.dtype[np.float32]]

_FLOATS = c.POINTER(c.c_float)
_FLOAT_LISTS = c.POINTER(_FLOATS)
_COUNTS = c.POINTER(c.c_uint64)
_OUTS = (c.POINTER(c.c_uint), c.POINTER(c.POINTER(c.c_uint)), c.POINTER(c.POINTER(_COUNTS)))
_IN = (_FLOAT_LISTS, _COUNTS, c.c_uint)
_OUT = (_FLOAT_LISTS, _COUNTS, c.c_uint)

SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "ie_create": (c.c_void_p, ()),
    "ie_free": (None, (c.c_void_p,)),
    "ie_setflag": (c.c_int, (c.c_void_p, c.c_char_p, c.c_char_p)),
    "ie_getinfo": (c.c_int, (c.c_void_p, c.c_char_p, c.c_void_p, c.c_size_t)),
    "ie_compile": (c.c_void_p, (c.c_void_p, c.c_char_p, c.c_char_p, c.c_char_p, *_OUTS, c.c_void_p)),
    "ie_compile_vfp": (c.c_void_p, (c.c_void_p, c.c_char_p, c.c_char_p, c.c_char_p, *_OUTS, *_IN, c.c_void_p)),
    "ie_init": (c.c_void_p, (c.c_void_p, c.c_char_p, *_OUTS, c.c_void_p)),
    "ie_run": (c.c_int, (c.c_void_p, *_IN, *_OUT)),
    "ie_run_sw": (c.c_int, (c.c_void_p, *_IN, *_OUT)),
    "ie_run_thnets": (c.c_int, (c.c_void_p, *_IN, *_OUT)),
    "ie_putinput": (c.c_int, (c.c_void_p, *_IN, c.c_void_p)),
    "ie_getresult": (c.c_int, (c.c_void_p, *_OUT, c.POINTER(c.c_void_p))),
}
"""Result and arguments of each function."""

_INFO: Mapping[int, Any] = {2: c.c_bool, 3: c.c_int, 4: c.c_int64, 5: c.c_float}
"""Type of `ie_getinfo`'s value by its result code; 0 is no value and 1 is text."""

Shapes = tuple[tuple[int, ...], ...]


class Library:
    """The loaded library. Loading raises PluginLoadError if it is missing, lacks a function, or cannot be loaded."""

    def __init__(self, path: str = "") -> None:
        self.path = path or LIBRARY
        try:
            self._functions = c.CDLL(self.path)
        except OSError as error:
            raise PluginLoadError(f"cannot load {self.path}: {error}", backend=_NAME, hint=_NEXT) from error
        missing = [name for name in SIGNATURES if not hasattr(self._functions, name)]
        if missing:
            text = f"{self.path} lacks {', '.join(missing)}: it is not an MDLA library, or is of another version"
            raise PluginLoadError(text, backend=_NAME, hint=_NEXT)
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self._functions, name)
            function.restype, function.argtypes = result, arguments

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in SIGNATURES:
            raise AttributeError(name)
        return getattr(self._functions, name)


class Board:
    """One context of the library, which compiles, loads and runs one program. Calls from several threads take turns."""

    def __init__(self, library: Library, flags: Iterable[tuple[str, str]] = (), *, timeout_s: float = 60.0) -> None:
        """Create a context, check the version and set flags. Raise PluginLoadError, or CompileError for a wrong flag."""
        self._library, self._timeout_s = library, timeout_s
        self._lock = threading.Lock()
        self._pending: deque[tuple[Any, ...]] = deque()
        self._dead = ""
        handle = library.ie_create()
        if not handle:
            raise PluginLoadError(
                "ie_create returned no context: is the board there, and its driver loaded?", backend=_NAME
            )
        self._owner = _Owner(library, handle)
        self._finalizer = weakref.finalize(self, self._owner.free)
        self.output_shapes: Shapes = ()
        try:
            self.version = self._checked_version()
            for name, value in flags:
                if code := library.ie_setflag(self._handle, name.encode(), value.encode()):
                    raise CompileError(f"ie_setflag({name}={value}) returned {code}: no such flag or value", backend=_NAME)
        except HubError:
            self.close()
            raise

    def close(self) -> None:
        """Free the context once; further calls do nothing. A hung board keeps its context, because a call still uses it."""
        self._finalizer()

    @property
    def is_open(self) -> bool:
        """Return True until the context is freed."""
        return self._owner.handle is not None

    # --- Compiling ----------------------------------------------------------------------------------------------------

    def compile(self, model: Path, binary: Path, inshapes: str, samples: Sequence[Array] = ()) -> None:
        """Compile an ONNX file to a file for the board, with ranges from `samples` (one array per input) if given.

        Raise CompileError if that fails.
        """
        name = "ie_compile_vfp" if samples else "ie_compile"
        given = (str(model).encode(), str(binary).encode(), inshapes.encode())
        extra, _kept = _inputs(samples) if samples else ((), ())
        self._take(name, lambda outs: (*given, *outs, *extra, None))

    def load(self, binary: Path) -> None:
        """Load a compiled program onto the board. Raise CompileError if that fails."""
        self._take("ie_init", lambda outs: (str(binary).encode(), *outs, None))

    def _take(self, name: str, arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        count, dims, shapes = c.c_uint(0), c.POINTER(c.c_uint)(), c.POINTER(_COUNTS)()
        with self._lock:
            outs = (c.byref(count), c.byref(dims), c.byref(shapes))
            found = getattr(self._library, name)(self._handle, *arguments(outs))
            if not found:
                raise CompileError(
                    f"{name} failed: it returned no context", backend=_NAME, hint="the SDK prints the reason"
                )
            self._owner.handle = found
            if count.value and not (dims and shapes):
                raise CompileError(f"{name} announced {count.value} outputs without their shapes", backend=_NAME)
            self.output_shapes = tuple(
                tuple(int(shapes[index][dim]) for dim in range(dims[index])) for index in range(count.value)
            )

    # --- Running ------------------------------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Array], *, function: str = "ie_run") -> list[Array]:
        """Run one call: on the board, or by `ie_run_sw` (its bit-exact model) or `ie_run_thnets` (float).

        Raise RunError for a failure, and for a board that does not answer in time; such a board is not called again.
        """
        with self._lock:
            self._check_alive()
            given, kept = _inputs(inputs)
            wanted, outputs = self._outputs()
            code = self._in_time(
                function, lambda: getattr(self._library, function)(self._handle, *given, *wanted), (kept, outputs)
            )
            _check(function, code)
            _check_sizes(function, wanted[1], outputs)
            return outputs

    def put(self, inputs: Sequence[Array], tag: int) -> bool:
        """Send inputs tagged with a number; return False if the board accepts no more now. Raise RunError for a failure."""
        with self._lock:
            self._check_alive()
            given, kept = _inputs(inputs)
            code = self._in_time(
                "ie_putinput", lambda: self._library.ie_putinput(self._handle, *given, c.c_void_p(tag)), kept
            )
            if code == WOULD_BLOCK:
                return False
            _check("ie_putinput", code)
            self._pending.append((given, kept))
            return True

    def get(self) -> tuple[list[Array], int] | None:
        """Return the oldest result and its tag; None if there is none yet. Raise RunError for a failure."""
        with self._lock:
            self._check_alive()
            wanted, outputs = self._outputs()
            tag = c.c_void_p()
            code = self._in_time(
                "ie_getresult", lambda: self._library.ie_getresult(self._handle, *wanted, c.byref(tag)), outputs
            )
            if code == WOULD_BLOCK:
                return None
            if self._pending:
                self._pending.popleft()
            _check("ie_getresult", code)
            _check_sizes("ie_getresult", wanted[1], outputs)
            return outputs, tag.value or 0

    def stream(self, calls: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
        """Yield the results of many calls in order, with at most `IN_FLIGHT` in flight. Raise RunError for a failure."""
        sent = received = 0
        waiting = iter(calls)
        upcoming = next(waiting, None)
        while upcoming is not None or received < sent:
            if upcoming is not None and sent - received < IN_FLIGHT and self.put(upcoming, sent + 1):
                sent += 1
                upcoming = next(waiting, None)
                continue
            found = self._awaited(received + 1)
            received += 1
            yield found

    def _awaited(self, tag: int) -> list[Array]:
        deadline = threading.Event()
        timer = threading.Timer(self._timeout_s, deadline.set)
        timer.daemon = True
        timer.start()
        try:
            while not deadline.is_set():
                found = self.get()
                if found is None:
                    deadline.wait(0.001)
                    continue
                if found[1] != tag:
                    raise RunError(f"ie_getresult returned result {found[1]}, {tag} expected", backend=_NAME)
                return found[0]
        finally:
            timer.cancel()
        raise RunError(f"ie_getresult returned no result within {self._timeout_s:g} s", backend=_NAME)

    def _outputs(self) -> tuple[tuple[Any, ...], list[Array]]:
        if not self.output_shapes:
            raise RunError("no program is on the board", backend=_NAME, hint="call load() first")
        outputs = [np.zeros(shape, np.float32) for shape in self.output_shapes]
        return _pointers(outputs), outputs

    def _in_time(self, name: str, call: Callable[[], int], kept: Any) -> int:
        """Run a call of the library in a separate thread: a hung call cannot be ended, and must not block the caller.

        The thread keeps `kept`, the arrays that the call reads and writes, until the call returns.
        """
        codes: list[int] = []

        def run(_: Any) -> None:
            codes.append(call())

        worker = threading.Thread(target=run, args=(kept,), name=f"mdla {name}", daemon=True)
        worker.start()
        worker.join(self._timeout_s)
        if worker.is_alive():
            self._dead = f"{name} did not answer within {self._timeout_s:g} s"
            self._owner.is_busy = True
            raise RunError(
                f"{self._dead}; the board is not used any more", backend=_NAME, hint="HUB_MDLA_TIMEOUT_S sets the limit"
            )
        if not codes:
            raise RunError(f"{name} could not be called", backend=_NAME)
        return codes[0]

    def _check_alive(self) -> None:
        if self._dead:
            raise RunError(f"{self._dead}; it is not used any more", backend=_NAME)

    # --- Information --------------------------------------------------------------------------------------------------

    def info(self, name: str) -> Any:
        """Return `ie_getinfo`'s value of a name; None if it has none. Raise RunError for an error."""
        buffer = c.create_string_buffer(256)
        kind = self._library.ie_getinfo(self._handle, name.encode(), buffer, len(buffer))
        if kind == 0:
            return None
        if kind == 1:
            return buffer.value.decode(errors="replace")
        if kind not in _INFO:
            raise RunError(f"ie_getinfo({name}) returned {kind}", backend=_NAME)
        return _INFO[kind].from_buffer(buffer).value

    def _checked_version(self) -> str:
        try:
            text = self.info("version")
        except RunError as error:
            raise PluginLoadError(f"{self._library.path} reports no version: {error.message}", backend=_NAME) from error
        parts = [part for part in str(text).split(".")[:2] if part.isdigit()]
        if not isinstance(text, str) or len(parts) < 2 or tuple(map(int, parts)) < OLDEST:
            raise PluginLoadError(
                f"{self._library.path} is of version {text!r}, {'.'.join(map(str, OLDEST))} or later is needed",
                backend=_NAME,
                hint=_NEXT,
            )
        return text

    @property
    def _handle(self) -> int:
        if self._owner.handle is None:
            raise RunError("the board was closed", backend=_NAME)
        return self._owner.handle


class _Owner:
    """Owner of a context, which is freed exactly once: by `close`, the garbage collector, or the end of the process."""

    def __init__(self, library: Library, handle: int) -> None:
        self._library = library
        self.handle: int | None = handle
        self.is_busy = False
        """True while a hung call still uses the context: freeing it then would crash."""

    def free(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None and not self.is_busy:
            self._library.ie_free(handle)


def _pointers(arrays: Sequence[Array]) -> tuple[Any, ...]:
    """Return the addresses, the element counts, and the number of arrays: the interface's form of inputs and outputs."""
    addresses = (_FLOATS * len(arrays))(*(array.ctypes.data_as(_FLOATS) for array in arrays))
    counts = (c.c_uint64 * len(arrays))(*(array.size for array in arrays))
    return (addresses, counts, len(arrays))


def _inputs(arrays: Sequence[Array]) -> tuple[tuple[Any, ...], list[Array]]:
    """Return the arguments for inputs, and the arrays that must live as long as they."""
    kept = [np.ascontiguousarray(array, np.float32) for array in arrays]
    return _pointers(kept), kept


def _check(name: str, code: int) -> None:
    if code == 0:
        return
    meaning = {ERROR: "an error", WOULD_BLOCK: "would block"}.get(code, "a code that the interface does not know")
    raise RunError(f"{name} returned {code}: {meaning}", backend=_NAME, hint="the SDK prints the reason")


def _check_sizes(name: str, counts: Any, outputs: Sequence[Array]) -> None:
    for index, array in enumerate(outputs):
        if counts[index] != array.size:
            raise RunError(f"{name} wrote {counts[index]} elements of output {index}, {array.size} expected", backend=_NAME)
