"""OpenVINO's core: one a process, kept until it ends."""

from __future__ import annotations

from functools import cache

import openvino as ov


@cache
def core() -> ov.Core:
    """Return the core; made when first asked for.

    None is ever let go: compiling makes OpenVINO (2026.4) set the stack on which the calling thread runs signal handlers,
    and a core that goes frees it, also from another thread. The next Ctrl-C was then a segmentation fault.
    """
    return ov.Core()
