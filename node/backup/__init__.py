"""Backups of a node's data directory, made while the node runs.

They are verified, and restored into an empty directory.
Works on files alone, without the node. Start at `create`; docs/backup.md is the page for operators.
"""
