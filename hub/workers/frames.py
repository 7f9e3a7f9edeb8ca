"""Pickled messages through a pipe, each with a header, so that anything else written into the pipe is detected."""

from __future__ import annotations

import os
import pickle
import select
import time
from typing import Any

from hub.errors import CompileError, LimitExceeded
from hub.report.numbers import megabytes

_MAGIC = b"\x93hub\r\n\x1a\n"
_LENGTH_BYTES = 8
_HEADER_BYTES = len(_MAGIC) + _LENGTH_BYTES
_CHUNK_BYTES = 1 << 20


def send(descriptor: int, value: Any) -> None:
    """Write one message. Raise OSError if the reader is gone. Errors of pickling are raised before anything is written."""
    data = pickle.dumps(value)
    view = memoryview(_MAGIC + len(data).to_bytes(_LENGTH_BYTES, "little") + data)
    while view:
        view = view[os.write(descriptor, view) :]


def is_readable(descriptor: int, within_s: float | None) -> bool:
    """Return whether data or the end of the pipe can be read within some seconds; None waits without a limit."""
    poll = select.poll()  # select.select refuses descriptors above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if within_s is None else 1e3 * within_s))


def receive(descriptor: int, within_s: float, most_bytes: int | None = None) -> Any:
    """Read one message of at most `most_bytes` bytes.

    Raise EOFError at the end, and CompileError for garbage, for a longer message, and for one that does not end in time.
    """
    deadline = time.monotonic() + within_s
    header = _read(descriptor, _HEADER_BYTES, deadline)
    if not header.startswith(_MAGIC):
        raise CompileError("the worker process wrote unexpected data to the hub's pipe")
    size = int.from_bytes(header[len(_MAGIC) :], "little")
    if most_bytes is not None and size > most_bytes:
        allowed = f"{megabytes(most_bytes)} allowed (`workers.output_limit_mb`)"
        raise LimitExceeded(f"the worker process started to send an answer of {megabytes(size)}, {allowed}")
    data = _read(descriptor, size, deadline)
    try:
        return pickle.loads(data)
    except Exception as error:
        raise CompileError(f"the worker process sent an answer that cannot be read: {type(error).__name__}") from error


def _read(descriptor: int, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not is_readable(descriptor, max(0.0, deadline - time.monotonic())):
            raise CompileError("the worker process did not finish its answer in time")
        chunk = os.read(descriptor, min(size - len(data), _CHUNK_BYTES))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
