"""Compiling one cluster in a worker: in which one, within which limits, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hub.errors import ContractError, LimitExceeded, PluginError
from hub.process.family import WATCH_S
from hub.process.working import now
from hub.workers.channel import Worker
from hub.workers.clock import Clock
from hub.workers.crew import RUN_LIMIT_S, Crew
from hub.workers.limits import Saving
from hub.workers.orders import Offer, Order, facts_of, late

SAVED_PER_WEIGHT = 8
"""Bytes that may be saved for each byte of the graph's weights, beside `output_limit_mb`: four bits may become 32."""
_FACTS = (
    *("compile_s", "is_saved", "problem", "is_finite_only", "notes", "verify_s", "changed", "fingerprint"),
    *("untried", "differs"),
)
"""What an offer says in the worker's words."""


class Compiler:
    """Compiles clusters, one at a time, in workers of a crew."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def compile(
        self,
        order: Order,
        names: Sequence[str],
        clock: Clock | None,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        suffix: str = "",
    ) -> Offer:
        """Compile one cluster; with a suffix, in a further worker, which keeps nothing that is to be timed.

        `names` are the inputs of all that the worker will compile. `meanwhile` is called while it compiles. Raise
        WorkerError where no worker can be had.
        """
        home = self._home(order, clock) + suffix
        is_kept = self._crew.is_timed and not suffix
        try:
            worker = self._crew.living(home)
            worker.ask("prepare", RUN_LIMIT_S, names=names)
            worker.saving = None if order.folder is None else Saving(order.folder, self._most_saved_bytes)
            worker.post("compile_cluster", **facts_of(order), **_folder_of(worker.saving), is_kept=is_kept)
            meanwhile()
            if not self._is_compiled(worker, order.group.backend, clock):
                return late(order)
            compiled: Any = worker.result(RUN_LIMIT_S)
        except PluginError as error:
            failed = self._failed(order, home, error)
            if isinstance(error, ContractError):
                self._crew.kill(home)  # its weights or its state may not be what they were: the next one gets another
            return failed
        worker.saving = None
        offer = Offer(order, **{name: getattr(compiled, name) for name in _FACTS})
        if is_kept or clock is None:
            self._crew.keep(home, offer)
        return offer

    def take_over(self, offer: Offer, clock: Clock) -> Offer:
        """Have a backend's own worker, where it will be timed, load what another one has compiled and saved."""
        if offer.failure is not None:
            return offer
        home = self._home(offer.order, clock)
        try:
            self._crew.living(home)
            self._crew.load_into(home, [offer])
        except PluginError as error:
            return self._failed(offer.order, home, error)
        self._crew.keep(home, offer)
        return offer

    def _home(self, order: Order, clock: Clock | None) -> str:
        """Return the name of the worker that compiles for a backend.

        A compilation may have to be stopped, which ends its worker. So it is never one that runs a whole plan, and, where
        the cluster only might help, never one that holds what is needed.
        """
        home = self._crew.home_of(order.group.backend)
        if self._crew.is_lent(home):
            return f"{home} anew"
        is_spare = clock is not None and not order.is_needed
        return f"{home} spare" if is_spare and any(held.order.is_needed for held in self._crew.held(home)) else home

    def _failed(self, order: Order, home: str, error: PluginError) -> Offer:
        """Return what comes of a cluster that failed in a worker, which is a suspect from now on."""
        error.backend = error.backend or order.group.backend
        error.cluster = error.cluster or order.name
        self._crew.suspect(home)
        return Offer(order, failure=error)

    @property
    def _most_saved_bytes(self) -> int:
        weights = sum(weight.numel() * weight.element_size() for weight in self._crew.sample.weights.values())
        return self._crew.limits.output_bytes + SAVED_PER_WEIGHT * weights

    def _is_compiled(self, worker: Worker, backend: str, clock: Clock | None) -> bool:
        """Wait for a compilation, and return True; False where the budget ended first, and then the worker is gone.

        Raise LimitExceeded where it takes too long, or too much.
        """
        limit_s = self._crew.limits.compile_s
        last_s = now() + limit_s
        while not worker.is_ready(WATCH_S):
            if reason := worker.excess():
                worker.kill()
                raise LimitExceeded(reason, hint="raise the limit, or exclude the backend")
            if now() > last_s:
                worker.kill()
                text = f"not compiled within {limit_s:.0f} s (`compile_limit_s`)"
                raise LimitExceeded(text, hint="raise the limit, or exclude the backend")
            if clock is not None and now() > clock.compile_until(backend):
                worker.kill()
                return False
        return True


def _folder_of(saving: Saving | None) -> dict[str, Any]:
    return {"folder": str(saving.folder), "most_saved_bytes": saving.most_bytes} if saving else {"folder": None}
