"""OpenVINO's core: one per process, kept until the process ends."""

from __future__ import annotations

from functools import cache

import openvino as ov


@cache
def core() -> ov.Core:
    """Return the core, created on first use.

    It is never released: compiling makes OpenVINO (2026.4) set the stack on which the calling thread runs signal handlers,
    and a released core frees that stack, also from another thread. The next Ctrl-C was then a segmentation fault.
    """
    return ov.Core()
