"""Entry of the worker process: `python -m hub.compilation.worker IN OUT`, with two pipe numbers.

Its tasks live in a module of their own, because what is defined in `__main__` cannot be unpickled elsewhere.
"""

from __future__ import annotations

from hub.compilation.channel import serve
from hub.compilation.state import claim_process
from hub.compilation.tasks import HANDLERS


def main() -> None:
    """Answers requests until nobody is there to ask."""
    claim_process()
    serve(HANDLERS)


if __name__ == "__main__":
    main()
