"""Entry point of the process that plans while a model runs: `python -m hub.planning.aside_worker IN OUT`, two pipes."""

from __future__ import annotations

from hub.workers.pool import POOL

if __name__ == "__main__":
    POOL.prepare()  # the process that forks workers imports PyTorch while this one does
    from hub.planning.aside_tasks import HANDLERS
    from hub.workers.channel import serve

    serve(HANDLERS)
