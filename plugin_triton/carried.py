"""Text that a file of kernels contains in addition to them, so that it runs alone."""

from __future__ import annotations

HEAD = '''"""Cluster {cluster}: {kernels}.

Made by plugin_triton. It needs torch and triton alone; `python {file}` runs it on random numbers, on a GPU, or with
TRITON_INTERPRET=1 on the CPU.
"""

import torch
import triton
import triton.language as tl
'''
IMPORT = "from triton.language.extra import libdevice\n"
LIBRARY = '''

class Library:
    """libdevice for Triton's interpreter, where it is empty: PyTorch's functions of the same elements."""

    names = {"nearbyint": "round", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "atan2": "arctan2"}

    def __getattr__(self, name):
        function = getattr(torch, self.names.get(name, name), None) or getattr(torch.special, name)
        return lambda *values: self.applied(function, values)

    def applied(self, function, values):
        kind = next(value for value in values if isinstance(value, tl.tensor)).dtype.scalar
        found = [torch.tensor(value.handle.data if isinstance(value, tl.tensor) else value) for value in values]
        result = function(*found).numpy()
        block = tl.block_type(kind, list(result.shape)) if result.shape else kind
        return tl.tensor(interpreter.TensorHandle(result, kind), block)


if triton.knobs.runtime.interpret:
    from triton.runtime import interpreter

    libdevice = Library()
'''
"""A replacement for libdevice in the interpreter, if kernels call it."""
INTERPRETED = '''
INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter would multiply the bits of bfloat16."""
'''
CHECK = '''

def check(flag):
    """Raises where an index was out of range; on a GPU as eager does, when the device is next waited for."""
    if flag.is_cuda:
        torch._assert_async(flag == 0, "an index is out of range")
    elif flag.item():
        raise IndexError("an index is out of range")
'''
MAIN = """

if __name__ == "__main__":
    place = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    for result in call(*example(place), place):
        print(result.dtype, tuple(result.shape), result.double().sum().item())
"""
