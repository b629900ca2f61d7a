"""The log: one a node, append-only files, group commit over all partitions.

`port` says what others know of it; `log` is the real thing, `memory` its twin.
"""
