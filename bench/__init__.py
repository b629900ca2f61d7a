"""Benchmarks behind every figure that is claimed: how to run them is in docs/benchmarks.md."""
