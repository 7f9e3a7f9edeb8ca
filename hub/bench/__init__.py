"""Benchmarks: whole models, each contender through its own API in its own process."""
