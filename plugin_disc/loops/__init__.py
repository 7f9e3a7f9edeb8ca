"""Turns a tensor program into loops: what is fused, what lies in memory, and the text of the machine program."""
