"""Entry of the suite's processes: `python -m hub.testing.conformance.worker IN OUT`, with two pipe numbers.

Its tasks live in a module of their own, because what is defined in `__main__` cannot be unpickled elsewhere.
"""

from __future__ import annotations

import torch

from hub.testing.conformance.tasks import HANDLERS
from hub.workers.channel import serve

if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(HANDLERS)
