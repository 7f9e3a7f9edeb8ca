"""Entry point of the worker process: `python -m hub.workers.worker IN OUT`, with two pipe descriptors.

Its tasks are in a separate module, because objects defined in `__main__` cannot be unpickled elsewhere.
"""

from __future__ import annotations

from hub.process.state import claim_process
from hub.workers.channel import serve
from hub.workers.tasks import HANDLERS


def main() -> None:
    """Answer requests until the parent is gone."""
    claim_process()
    serve(HANDLERS)


if __name__ == "__main__":
    main()
