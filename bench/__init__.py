"""Benchmarks behind every published figure; docs/benchmarks.md shows how to run them."""
