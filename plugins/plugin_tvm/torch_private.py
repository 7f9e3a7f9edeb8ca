"""PyTorch's private names that this plugin uses: its functions on symbolic sizes, which sympy itself does not have."""

from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, PythonMod

__all__ = ["CleanDiv", "FloorDiv", "Mod", "PythonMod"]
