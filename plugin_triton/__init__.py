"""Triton code generation: a cluster becomes one Python file of kernels."""
