"""torchMDLA's interface: a Dynamo backend "mdla", on between `enable` and `disable`, that compiles once per shape."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from hub.plugin import (
    CaptureError,
    OptionError,
    capture_inference,
    weight_positions,
)

from .backend import Mdla, open_device
from .executable import LOG
from .group import grouped
from .settings import Settings, pairs, read_settings

NAME = "mdla"
_current: Mdla | None = None


def turn_on(debug: str, options: str, clusters: int) -> None:
    """Enable the Dynamo backend; see `plugin_mdla.enable`."""
    global _current
    if isinstance(clusters, bool) or not isinstance(clusters, int) or clusters < 1:  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise OptionError(f"clusters={clusters!r}, a whole number of at least 1 expected", backend=NAME)
    try:
        flags = (*pairs(options), *([("debug", debug)] if debug else []))
    except ValueError as error:
        raise OptionError(f"options={options!r}: {error}", backend=NAME, hint='write "varfp=1 nfpgas=2"') from None
    settings = read_settings()
    _current = open_device(settings.model_copy(update={"clusters": clusters, "flags": (*settings.flags, *flags)}))
    from .torch_private import register_backend

    if NAME not in torch.compiler.list_backends(exclude_tags=()):  # pyright: ignore[reportUnknownMemberType] - torch's
        register_backend(name=NAME, compiler_fn=compile_groups)


def turn_off() -> None:
    """Disable the Dynamo backend; see `plugin_mdla.disable`."""
    global _current
    _current = None


def compile_groups(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Return the program with groups on the device, compiled at the first call with each set of shapes: the Dynamo backend.

    The program runs in eager without `enable`, in training, and if it has no functional form.
    """
    backend = _current
    if backend is None:
        return module.forward
    return _PerShape(module, weight_positions(module, example_inputs), backend)


class _PerShape:
    """A program with one compiled form for each set of shapes that it is called with."""

    def __init__(self, module: fx.GraphModule, weights: Sequence[int], backend: Mdla) -> None:
        self._module, self._weights, self._backend = module, frozenset(weights), backend
        self._forms: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, *inputs: Any) -> Any:
        needs_gradients = torch.is_grad_enabled() and any(getattr(value, "requires_grad", False) for value in inputs)
        if needs_gradients:
            return self._module.forward(*inputs)
        key = tuple(self._key(position, value) for position, value in enumerate(inputs))
        with self._lock:
            form = self._forms.get(key)
            if form is None:
                # After a weight has changed, the forms with its old value are never called again.
                self._forms = {known: made for known, made in self._forms.items() if self._has_weights(known, key)}
                form = self._forms[key] = self._compiled(inputs)
        return form(*inputs)

    def _key(self, position: int, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if position in self._weights:
            return (id(value), value._version)
        return (tuple(value.shape), tuple(value.stride()), value.dtype, value.device)

    def _has_weights(self, known: tuple[Any, ...], key: tuple[Any, ...]) -> bool:
        return all(known[position] == key[position] for position in self._weights)

    def _compiled(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            graph = capture_inference(self._module, inputs, sorted(self._weights))
        except CaptureError as error:
            LOG.warning("the program stays in eager: %s", error.message)
            return self._module.forward
        if graph.mutated:
            LOG.warning("the program stays in eager: it writes to its inputs")
            return self._module.forward
        names = [node.name for node in graph.placeholders]
        weights = {name: value for name, value in zip(names, inputs, strict=True) if name in graph.weights}
        program = grouped(graph, weights, self._backend)
        free = [position for position, name in enumerate(names) if name not in weights]
        return lambda *values: program(*(values[position] for position in free))


def current_settings() -> Settings | None:
    """Return the current settings between `enable` and `disable`, else None."""
    return None if _current is None else _current.settings
