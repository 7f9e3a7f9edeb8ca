"""Entry of the process that plans beside a running model: `python -m hub.planning.aside_worker IN OUT`, with two pipes."""

from __future__ import annotations

from hub.compilation.channel import serve
from hub.planning.aside_tasks import HANDLERS

if __name__ == "__main__":
    serve(HANDLERS)
