"""PyTorch's private names that this plugin uses.

`tree_leaves` finds tensors in results of any class that is registered with PyTorch, in the order of the exported program;
no public module has it.
"""

from torch.utils._pytree import tree_leaves

__all__ = ["tree_leaves"]
