"""A native compiler for clusters, which fuses memory-bound operators into vectorised loops, in its own machine code."""
