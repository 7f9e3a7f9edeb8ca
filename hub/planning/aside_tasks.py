"""Commands of the process that plans while a model runs."""

from __future__ import annotations

import functools
import os
import select
import sys
import threading
import time
from functools import partial
from pathlib import Path

import torch

from hub.config.options import Options
from hub.discovery.registry import registry
from hub.plan import Plan
from hub.planning.evidence import Mode
from hub.planning.make import Maker
from hub.planning.news import Planned, StageFile, tell_better
from hub.process.family import end_descendants
from hub.process.modes import Modes, set_modes
from hub.process.scratch import remove_with_owner
from hub.process.threads import set_threads
from hub.process.traffic import COUNTS, GAPS
from hub.process.working import leave_out_waiting
from hub.workers.transfer import read_sample


def plan(folder: str, mode: Mode, options: Options, threads: int, modes: Modes, known: Plan | None = None) -> Planned:
    """Return the plan for a sample; its executables, measurements and the plan itself are in the cache then.

    A plan that is known already is only built again, for other weights.
    """
    _begin()
    set_modes(modes)
    set_threads(threads)
    torch.set_grad_enabled(False)
    sample = read_sample(Path(folder))
    GAPS.watch(Path(folder) / COUNTS)
    tell, progress = partial(tell_better, Path(folder)), StageFile(Path(folder))
    began_s = time.monotonic()
    made = Maker(sample.graph, mode, options, registry(), progress, tell_better=tell).make(sample.values, known)
    return Planned(made.plan, began_s, made.phases)


@functools.cache
def _begin() -> None:
    """Prepare this process, before the first of the graphs that it plans."""
    threading.Thread(target=_end_with_parent, args=(int(sys.argv[1]), Path(sys.argv[3])), daemon=True).start()
    leave_out_waiting()


def _end_with_parent(requests: int, root: Path) -> None:
    """End this process and its descendants, and remove temporary files, once the user's process is gone."""
    poll = select.poll()
    poll.register(requests, 0)  # a hangup of the other side is reported without being requested
    poll.poll()
    end_descendants(os.getpid())
    remove_with_owner(root)
    os._exit(1)


HANDLERS = {"plan": plan}
