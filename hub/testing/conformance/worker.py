"""Entry point of the suite's processes: `python -m hub.testing.conformance.worker IN OUT`, with two pipe numbers.

The tasks are in a separate module, because what is defined in `__main__` cannot be unpickled in another process.
"""

from __future__ import annotations

import torch

from hub.testing.conformance.tasks import HANDLERS
from hub.workers.channel import serve

if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(HANDLERS)
