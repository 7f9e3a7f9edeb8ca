"""Entry of the process that plans beside a running model: `python -m hub.planning.aside_worker IN OUT`, with two pipes."""

from __future__ import annotations

from hub.workers.pool import POOL

if __name__ == "__main__":
    POOL.prepare()  # what forks workers imports PyTorch while this process does
    from hub.planning.aside_tasks import HANDLERS
    from hub.workers.channel import serve

    serve(HANDLERS)
