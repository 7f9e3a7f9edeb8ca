"""The complete hierarchy of the hub's errors.

Every error says what failed, on which cluster or node, in which plugin, what was expected, and what to do about it. These
facts are attributes too, so that tools need not parse text.
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, ClassVar

from hub.process.accelerators import is_full

LONGEST_TEXT = 4000
"""Most characters of a message: messages of plugins and compilers go into plans, reports and the database."""
_END_OF_TEXT = 1000
"""Number of them kept from the end of a longer text, where compilers often say what was wrong."""


def shortened(text: str) -> str:
    """Return a text without its middle if it is longer than messages may be, with the number of omitted characters."""
    if len(text) <= LONGEST_TEXT:
        return text
    begin, end = text[: LONGEST_TEXT - _END_OF_TEXT - 50], text[-_END_OF_TEXT:]
    return f"{begin} [... {len(text) - len(begin) - len(end)} characters ...] {end}"


def _fact(value: str | None) -> str | None:
    return None if value is None else shortened(str(value))


class HubError(Exception):
    """Base class of all errors that the hub raises on purpose."""

    GENERAL_HINT: ClassVar[str] = "`--verbose` shows the details"
    """What to do about an error of this class, unless `hint` says something more specific."""

    def __init__(
        self,
        message: str,
        *,
        backend: str | None = None,
        cluster: str | None = None,
        node: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = shortened(str(message))
        self.backend = _fact(backend)
        self.cluster = _fact(cluster)
        self.node = _fact(node)
        self._hint = _fact(hint)
        super().__init__(self.message)
        if self._hint is None:  # the text, which reports quote, has only specific hints; Python's traceback shows this one
            self.add_note(f"  hint: {self.GENERAL_HINT}")

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions' default pickling cannot handle the keyword-only facts, and errors travel between processes.
        return _rebuilt, (type(self), self.message, self.backend, self.cluster, self.node, self._hint)

    @property
    def hint(self) -> str:
        """Return what to do about it."""
        return self.GENERAL_HINT if self._hint is None else self._hint

    @property
    def place(self) -> str:
        """Return where it happened, "[backend 'tvm', cluster 'c0']"; "" if nothing is known."""
        where = [
            f"{kind} {value!r}"
            for kind, value in (("backend", self.backend), ("cluster", self.cluster), ("node", self.node))
            if value is not None
        ]
        return f"[{', '.join(where)}]" if where else ""

    @property
    def summary(self) -> str:
        """Return the message and where it happened: "compile() failed [backend 'tvm', cluster 'c0']"."""
        return f"{self.message} {self.place}".rstrip()

    def __str__(self) -> str:
        return self.summary if self._hint is None else f"{self.summary}\n  hint: {self._hint}"


def _rebuilt(
    kind: type[HubError], message: str, backend: str | None, cluster: str | None, node: str | None, hint: str | None
) -> HubError:
    return kind(message, backend=backend, cluster=cluster, node=node, hint=hint)


def text_of(error: BaseException) -> str:
    """Return an exception's type and text, whatever its own `__str__` does, shortened if necessary."""
    try:
        return shortened(f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - a plugin's exception may fail here as well
        return type(error).__name__


def type_of(value: object) -> str:
    """Return a value's type with its article: "an int", "a Tensor"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def words_of(error: BaseException) -> str:
    """Return an error's own words; of an OSError without its number and path, which the hub's messages have already."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


class HubWarning(UserWarning):
    """A backend failed and another one, or eager, took over; or the cache folder cannot be used.

    Shown once for each cause; reports always include it.
    """


_PASSED_THROUGH = frozenset({"hub", "torch", "contextlib", ""})
"""Packages whose lines say nothing about where a warning comes from; generated code has no name."""


def warn_user(text: str) -> None:
    """Issue a HubWarning at the line of the program that called into the hub or PyTorch, on this thread's stack."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _PASSED_THROUGH:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, HubWarning, stacklevel=2 if frame is None else level)


class CaptureError(HubError):
    """A model could not be turned into a functional ATen graph."""

    GENERAL_HINT = "`hub explain MODEL` says what PyTorch captures; without strict=True the program runs in eager"


class FreezeError(HubError):
    """A compiled model cannot be frozen, because a call of it is not exactly one captured graph; or a frozen one copied."""

    GENERAL_HINT = "call the compiled model itself: it needs no freezing"


class ModelError(HubError):
    """A model that a command was given cannot be loaded, or does not run."""

    GENERAL_HINT = "run the model without the hub first; `--verbose` shows where it failed"


class BenchmarkError(HubError):
    """A benchmark has no result."""

    GENERAL_HINT = "the table names the cause of each failure; `hub list-backends --probe` says what works here"


class PlanError(HubError):
    """A plan does not fit its graph, or no plan covers it."""

    GENERAL_HINT = "write a new plan with `hub explain MODEL -o FILE`, or leave `plan` out so that the hub plans"


class WeightsChanged(HubError):  # noqa: N818 - what happened
    """A weight changed while a plan was built for it."""

    GENERAL_HINT = "nothing to do: the next call builds a plan for the weights of then"


class CacheError(HubError):
    """A cache folder or entry cannot be used."""

    GENERAL_HINT = "set HUB_CACHE_DIR to a folder that you own, or `dir` in [cache] of hub.toml"


class OptionError(HubError):
    """An option is unknown, has the wrong type, or contradicts another one."""

    GENERAL_HINT = "docs/reference/options.md lists the options, `--help` the flags of a command"


class PrivateNameError(HubError):
    """The installed PyTorch does not have a private name that the hub uses; see `hub.torch_private`."""

    GENERAL_HINT = "install a version of PyTorch that was tried: docs/reference/versions.md lists them"


class WorkerError(HubError):
    """A worker process cannot be started, or cannot be given the program. Not a plugin's fault."""

    GENERAL_HINT = "free memory or raise the limit on processes; isolate=False runs plugins in this process instead"


class PluginError(HubError):
    """A plugin did something wrong; the model keeps running without it unless `strict` is set."""

    GENERAL_HINT = "leave the backend out with `exclude`, or set strict=False so that another one or eager takes over"

    @property
    def is_device_full(self) -> bool:
        """Return whether an accelerator was out of memory, to which other processes and the user's own model contribute."""
        return is_full(self.message)


class PluginLoadError(PluginError):
    """A plugin, or the library under it, cannot be imported or used on this machine."""

    GENERAL_HINT = "`hub list-backends` says what is missing and how to install it"


class ContractError(PluginError):
    """A plugin broke the backend contract: wrong API version, signature, shape, dtype, stride, device or aliasing."""

    GENERAL_HINT = (
        "this is a mistake in the plugin: `hub check-plugin NAME` shows more; leave the backend out with `exclude`"
    )


class CompileError(PluginError):
    """A backend failed to compile or load a cluster that it had accepted."""

    GENERAL_HINT = "leave the backend out with `exclude`, or set strict=False so that another one or eager takes over"


class WorkerDied(CompileError):  # noqa: N818 - what happened
    """A worker process ended before it answered."""

    GENERAL_HINT = "leave the backend out with `exclude`; if memory was short, set HUB_WORKERS_COUNT=1"

    was_ended_from_outside = False
    """True if a signal ended it that users send, or a system out of memory: no fault of what ran in it."""


class WorkerGone(CompileError):  # noqa: N818 - what happened
    """A worker process had ended before it got the request, so the request is not the cause."""

    GENERAL_HINT = "try again; if memory was short, set HUB_WORKERS_COUNT=1"


class LimitExceeded(CompileError):  # noqa: N818 - what happened, as in Python's own TimeoutExpired
    """Compiling took more time, memory or output than the options allow. It is retried under other limits."""

    GENERAL_HINT = "raise compile_limit_s, memory_limit_gb or output_limit_mb in [workers] of hub.toml"


class ConstantsRefused(CompileError):  # noqa: N818 - a refusal, and not a fault of the backend
    """A backend cannot compile a cluster with these weights, or these files of the user's. It is retried with others."""

    GENERAL_HINT = "leave the backend out with `exclude`, or set strict=False so that another one or eager takes over"


class RunError(PluginError):
    """An executable failed while running."""

    GENERAL_HINT = "leave the backend out with `exclude`, or set strict=False so that eager takes over"


class InputRefused(RunError):  # noqa: N818 - a refusal, and not a fault of the executable
    """An executable cannot compute this call's values faithfully. Its cluster runs in eager for this call only."""

    GENERAL_HINT = "set strict=False, so that such calls run in eager"


class AccuracyError(PluginError):
    """An executable's numbers differ from eager's by more than the error budget."""

    GENERAL_HINT = "allow a larger error with `accuracy`, or leave the backend out with `exclude`"
