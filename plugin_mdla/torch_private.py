"""PyTorch's private names that this plugin uses.

`register_backend` adds a name for `torch.compile(backend=...)` when the user enables it. The public way, an entry point, is
for names that always exist. PyTorch's documentation of custom backends shows this function.
"""

from torch._dynamo import register_backend

__all__ = ["register_backend"]
