"""The complete hierarchy of the hub's errors.

Every message says what failed, on which cluster or node, in which plugin, what was expected, and the next step. The same
facts are attributes, so that tools need not parse text.
"""

from __future__ import annotations

from typing import Any

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
        self.hint = _fact(hint)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions' default pickling cannot handle the keyword-only facts, and errors travel between processes.
        return _rebuilt, (type(self), self.message, self.backend, self.cluster, self.node, self.hint)

    def __str__(self) -> str:
        where = [
            f"{kind} {value!r}"
            for kind, value in (("backend", self.backend), ("cluster", self.cluster), ("node", self.node))
            if value is not None
        ]
        text = self.message if not where else f"{self.message} [{', '.join(where)}]"
        return text if self.hint is None else f"{text}\n  next step: {self.hint}"


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


class HubWarning(UserWarning):
    """A backend failed and another one, or eager, took over; or the cache folder cannot be used.

    Shown once for each cause; reports always include it.
    """


class CaptureError(HubError):
    """A model could not be turned into a functional ATen graph."""


class FreezeError(HubError):
    """A compiled model cannot be frozen, because a call of it is not exactly one captured graph; or a frozen one copied."""


class PlanError(HubError):
    """A plan does not fit its graph, or no plan covers it."""


class CacheError(HubError):
    """A cache folder or entry cannot be used."""


class OptionError(HubError):
    """An option is unknown, has the wrong type, or contradicts another one."""


class PrivateNameError(HubError):
    """The installed PyTorch does not have a private name that the hub uses; see `hub.torch_private`."""


class WorkerError(HubError):
    """A worker process cannot be started, or cannot be given the program. Not a plugin's fault."""


class PluginError(HubError):
    """A plugin did something wrong; the model keeps running without it unless `strict` is set."""

    @property
    def is_device_full(self) -> bool:
        """Return whether an accelerator was out of memory, to which other processes and the user's own model contribute."""
        return is_full(self.message)


class PluginLoadError(PluginError):
    """A plugin, or the library under it, cannot be imported or used on this machine."""


class ContractError(PluginError):
    """A plugin broke the backend contract: wrong API version, signature, shape, dtype, stride, device or aliasing."""


class CompileError(PluginError):
    """A backend failed to compile or load a cluster that it had accepted."""


class WorkerDied(CompileError):  # noqa: N818 - what happened
    """A worker process ended before it answered."""


class WorkerGone(CompileError):  # noqa: N818 - what happened
    """A worker process had ended before it got the request, so the request is not the cause."""


class LimitExceeded(CompileError):  # noqa: N818 - what happened, as in Python's own TimeoutExpired
    """Compiling took more time, memory or output than the options allow. It is retried under other limits."""


class ConstantsRefused(CompileError):  # noqa: N818 - a refusal, and not a fault of the backend
    """A backend cannot compile a cluster with these weights, or these files of the user's. It is retried with others."""


class RunError(PluginError):
    """An executable failed while running."""


class InputRefused(RunError):  # noqa: N818 - a refusal, and not a fault of the executable
    """An executable cannot compute this call's values faithfully. Its cluster runs in eager for this call only."""


class AccuracyError(PluginError):
    """An executable's numbers differ from eager's by more than the error budget."""
