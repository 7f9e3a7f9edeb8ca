"""Contenders: eager, the hub, the hub with one backend, and every compiler through its own API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from hub.errors import HubError
from hub.registry import Entry, load_attribute, registry
from hub.suggest import did_you_mean

HUB = "hub"
EAGER = "eager"
_RESTRICTED = "hub:"


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to run a model."""

    name: str
    """"eager", "hub", "hub:openvino", or the name of a peer."""
    peer: str = ""
    """ "package.module:callable" of a peer, see `BackendInfo.peers`; empty for the others."""
    unavailable: str = ""
    """Why it cannot run here; empty where it can."""

    @property
    def is_hub(self) -> bool:
        """True where the model goes through the hub."""
        return self.name == HUB or self.name.startswith(_RESTRICTED)


def contenders(wanted: Sequence[str] | None = None) -> tuple[Contender, ...]:
    """Gives the hub and the contenders of these names, each once; None means eager and every peer that can run here.

    A contender that was named but cannot run is given with its reason. Raises HubError, with the nearest name, for an
    unknown one.
    """
    known = _known(registry().entries.values())
    if wanted is None:
        wanted = [name for name, one in known.items() if not one.unavailable and not name.startswith(_RESTRICTED)]
    for name in wanted:
        if name not in known:
            raise HubError(
                f"no contender is named {name!r}{did_you_mean(name, known)}", hint=f"choose from {', '.join(known)}"
            )
    return tuple(known[name] for name in dict.fromkeys((HUB, *wanted)))


def _known(entries: Iterable[Entry]) -> Mapping[str, Contender]:
    found = {HUB: Contender(HUB), EAGER: Contender(EAGER)}
    for entry in entries:
        reason = entry.status.reason
        peers = (Contender(name, peer, reason) for name, peer in entry.info.peers.items())
        for one in (*peers, Contender(_RESTRICTED + entry.name, unavailable=reason)):
            found.setdefault(one.name, one)
    return found


def compiled_by_hub(module: Any, given: Mapping[str, Any]) -> Any:
    """Gives `module` compiled through the hub with these options."""
    import torch  # the command line lists contenders without it

    return cast("Any", torch).compile(  # its annotations allow no tuples among options
        module, backend="hub", options=dict(given) or None
    )


@dataclass(frozen=True, slots=True)
class Built:
    """A contender ready to run."""

    call: Callable[[], Any]
    """Runs the model once."""
    compiled: Any = None
    """What `hub.plans` takes, where the model goes through the hub."""


def build(contender: Contender, module: Any, inputs: Sequence[Any], given: Mapping[str, Any]) -> Built:
    """Builds a contender for one model and the inputs of one call. Raises whatever the contender raises."""
    if contender.peer:
        return Built(load_attribute(contender.peer)(module, tuple(inputs)))
    if contender.name == EAGER:
        return Built(lambda: module(*inputs))
    restricted = contender.name.removeprefix(_RESTRICTED) if contender.name != HUB else None
    options = {**given, "backends": (restricted,), "exclude": ()} if restricted else given
    compiled = compiled_by_hub(module, options)
    return Built(lambda: compiled(*inputs), compiled)
