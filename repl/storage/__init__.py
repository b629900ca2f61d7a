"""The data directory: the node's identity and the slot files that hold it durably.

Imports `repl.model` only. Start at `identity`.
"""
