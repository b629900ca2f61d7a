"""The store: one LevelDB per node, rows by partition, written in apply steps.

`port` is the interface; `leveldb` implements it and is the only module that imports plyvel; `rows` is the layout on
disk. Must not import `repl.runtime` or `repl.transport`. Start at `port`, then `rows`, then `leveldb`.
"""
