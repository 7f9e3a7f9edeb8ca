"""A native compiler for clusters: fuses memory-bound operators into vectorised loops, in machine code of its own."""
