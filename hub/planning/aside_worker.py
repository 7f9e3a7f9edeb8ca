"""Entry of the process that plans beside a running model: `python -m hub.planning.aside_worker IN OUT`, with two pipes."""

from __future__ import annotations

from hub.planning.aside_tasks import HANDLERS
from hub.workers.channel import serve

if __name__ == "__main__":
    serve(HANDLERS)
