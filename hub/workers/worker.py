"""Entry of the worker process: `python -m hub.workers.worker IN OUT`, with two pipe numbers.

Its tasks live in a module of their own, because what is defined in `__main__` cannot be unpickled elsewhere.
"""

from __future__ import annotations

from hub.process.state import claim_process
from hub.workers.channel import serve
from hub.workers.tasks import HANDLERS


def main() -> None:
    """Answer requests until nobody is there to ask."""
    claim_process()
    serve(HANDLERS)


if __name__ == "__main__":
    main()
