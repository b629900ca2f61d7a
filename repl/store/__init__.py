"""The store: one LevelDB a node, rows by partition, written in apply steps.

`port` says what others know of it; `leveldb` is the real thing, `memory` its twin; `rows` is the layout.
"""
