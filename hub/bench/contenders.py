"""Contenders: eager, the hub in several ways, and every compiler through its own API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hub.config.suggest import did_you_mean
from hub.discovery.registry import load_attribute, registry
from hub.errors import OptionError
from hub.plugin.entry import Entry

HUB = "hub"
EAGER = "eager"
WARM = "hub@warm"
"""A second process that uses the cache left by the first one."""
FROZEN = "hub@frozen"
"""The result of `hub.freeze` for the hub's model: the same plan without Dynamo before every call."""
DIRECT = "hub@direct"
"""The result of `hub.compile` for the model: the same plan, with all checks of Dynamo made by other means."""
TUNED = "hub@tuned"
"""The hub with `tune="full"`, a budget of a minute, and its own cache: the result of `hub tune --budget 60`."""
TUNED_FROZEN = "hub@tuned-frozen"
"""The same, frozen."""
ISOLATED, INLINE = "hub@isolated", "hub@inline"
"""The first plan considered, `tune="off"`: tried in worker processes, or entirely in the user's process."""
_ONLY = "hub:"
_WITHOUT = "hub-"
_TUNED = {"tune": "full", "budget_s": 60.0}
_ISOLATED: Mapping[str, Any] = {"tune": "off"}
_INLINE: Mapping[str, Any] = {"tune": "off", "isolate": False}


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to run a model."""

    name: str
    """"eager", "hub", "hub:openvino" (only that backend), "hub-openvino" (all but that one), or the name of a peer."""
    peer: str = ""
    """ "package.module:callable" of a peer, see `BackendInfo.peers`; empty for the others."""
    unavailable: str = ""
    """Reason why it cannot run here; empty if it can."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the hub that override those of the benchmark."""
    is_timed: bool = True
    """False if only the first call is of interest."""
    cache: str = ""
    """Contenders with the same name here share a cache if a benchmark begins with empty ones; empty for its own cache."""

    @property
    def is_hub(self) -> bool:
        """True if the model goes through the hub."""
        return is_hub(self.name)


def is_hub(name: str) -> bool:
    """Return whether a contender of this name goes through the hub."""
    return name == HUB or name.startswith((_ONLY, _WITHOUT, HUB + "@"))


def only(backend: str) -> str:
    """Return the name of the hub with only one backend: "hub:openvino"."""
    return _ONLY + backend


def without(backend: str) -> str:
    """Return the name of the hub without one backend: "hub-openvino"."""
    return _WITHOUT + backend


def backend_alone(name: str) -> str:
    """Return the backend of a contender such as "hub:openvino"; "" for any other."""
    return name.removeprefix(_ONLY) if name.startswith(_ONLY) else ""


def backend_left_out(name: str) -> str:
    """Return the backend of a contender such as "hub-openvino"; "" for any other."""
    return name.removeprefix(_WITHOUT) if name.startswith(_WITHOUT) else ""


def contenders(wanted: Sequence[str] | None = None) -> tuple[Contender, ...]:
    """Return the hub and the named contenders, each once; None means eager and every peer that can run here.

    A named contender that cannot run is included with its reason. Raise OptionError, with the nearest name, for an unknown
    one.
    """
    known = _known(registry().entries.values())
    if wanted is None:
        wanted = _names(known, lambda one: not one.is_hub)
    for name in wanted:
        if name not in known:
            raise OptionError(
                f"no contender is named {name!r}{did_you_mean(name, known)}", hint=f"choose from {', '.join(known)}"
            )
    return tuple(known[name] for name in dict.fromkeys((HUB, *wanted)))


def zoo_names() -> tuple[str, ...]:
    """Return the contenders of a whole benchmark: eager, every peer, and the hub by default, frozen, and tuned."""
    known = _known(registry().entries.values())
    peers = _names(known, lambda one: not one.is_hub)
    return (*peers, DIRECT, FROZEN, TUNED, TUNED_FROZEN)


def more_names(
    *, alone: bool = False, ablation: bool = False, warm: bool = False, isolation: bool = False
) -> tuple[str, ...]:
    """Return the contenders that are requested by flags.

    `alone`: the hub with each single backend that can run here. `ablation`: the hub without each one. `warm`: a second
    process. `isolation`: what worker processes cost a cold compilation.
    """
    known = _known(registry().entries.values())
    by_itself = _names(known, lambda one: bool(backend_alone(one.name))) if alone else ()
    left_out = _names(known, lambda one: bool(backend_left_out(one.name))) if ablation else ()
    apart = (ISOLATED, INLINE) if isolation else ()
    return (*((WARM,) if warm else ()), *apart, *by_itself, *left_out)


def _names(known: Mapping[str, Contender], is_wanted: Callable[[Contender], bool]) -> tuple[str, ...]:
    return tuple(name for name, one in known.items() if not one.unavailable and is_wanted(one))


def _known(entries: Iterable[Entry]) -> Mapping[str, Contender]:
    hubs = (
        Contender(HUB, cache=HUB),
        Contender(DIRECT, cache=HUB),
        Contender(FROZEN, cache=HUB),
        Contender(WARM, cache=HUB, is_timed=False),
        Contender(TUNED, options=_TUNED, cache=TUNED),
        Contender(TUNED_FROZEN, options=_TUNED, cache=TUNED),
        Contender(ISOLATED, options=_ISOLATED, is_timed=False),
        Contender(INLINE, options=_INLINE, is_timed=False),
    )
    found = {one.name: one for one in (hubs[0], Contender(EAGER), *hubs[1:])}
    for entry in entries:
        for one in _of_entry(entry):
            found.setdefault(one.name, one)
    return found


def _of_entry(entry: Entry) -> tuple[Contender, ...]:
    """Return a backend's peers, the hub with it alone, and the hub without it; both of the latter reuse measurements."""
    reason = entry.status.reason
    alone: Mapping[str, Any] = {"backends": (entry.name,), "exclude": ()}
    return (
        *(Contender(name, peer, reason) for name, peer in entry.info.peers.items()),
        Contender(only(entry.name), unavailable=reason, options=alone, cache=HUB),
        Contender(without(entry.name), unavailable=reason, cache=HUB),
    )


def compiled_by_hub(module: Any, given: Mapping[str, Any], *, goes_on: bool = False) -> Any:
    """Return `module` compiled by the hub with these options; with `goes_on`, verify further after the first answer."""
    import torch  # the command line lists contenders without it

    # PyTorch's annotations allow no tuples among options.
    return cast("Any", torch).compile(module, backend="hub", options=_waiting(given, goes_on=goes_on))


def _waiting(given: Mapping[str, Any], *, goes_on: bool) -> Mapping[str, Any]:
    """Return options with which the first answer waits for the plan, whatever the given ones say."""
    return {**({} if goes_on else {"background": False}), **given, "start": "wait"}


@dataclass(frozen=True, slots=True)
class Built:
    """A contender that is ready to run."""

    call: Callable[[], Any]
    """Function that runs the model once."""
    compiled: Any = None
    """Argument for `hub.plans`, if the model goes through the hub."""


def build(contender: Contender, module: Any, inputs: Sequence[Any], given: Mapping[str, Any]) -> Built:
    """Build a contender for one model and the inputs of one call. Propagate its exceptions."""
    if contender.peer:
        return Built(load_attribute(contender.peer)(module, tuple(inputs)))
    if not contender.is_hub:
        return Built(lambda: module(*inputs))
    options = options_of(contender, given)
    if contender.name == DIRECT:
        from hub.frontend.direct.compile import compile as compile_directly  # needs torch

        direct = compile_directly(module, options=_waiting(options, goes_on=True))
        return Built(lambda: direct(*inputs), direct)
    compiled = compiled_by_hub(module, options, goes_on=contender.is_timed)
    if contender.name in (FROZEN, TUNED_FROZEN):
        from hub.frontend.freezing import freeze  # needs torch

        frozen = freeze(compiled, *inputs)
        return Built(lambda: frozen(*inputs), compiled)
    return Built(lambda: compiled(*inputs), compiled)


def options_of(contender: Contender, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a contender that uses the hub; a plan file applies only to those with all backends."""
    if contender.name not in (HUB, DIRECT, FROZEN, WARM):
        given = {name: value for name, value in given.items() if name != "plan"}
    left_out = backend_left_out(contender.name)
    if left_out and given.get("backends"):
        return {**given, "backends": tuple(name for name in given["backends"] if name != left_out)}
    if left_out:
        return {**given, "exclude": (*given.get("exclude", ()), left_out)}
    return {**given, **contender.options}
