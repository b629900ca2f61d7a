"""Merkle trees over a node's keys: build, keep, update, save.

Must not import other packages of `aae`. Start at `tree` (the value), then `tree_cache` (the trees of a node).
"""
