"""Lowering of a tensor program to loops: what is fused, what lies in memory, and the text of the machine program."""
