"""The source side of replication between clusters: named queues over the index of changes.

A queue is a window over applied changes, not a log: each partition has a durable cursor, and what lies above the
cursor is read from the change index. `window`, `source_queue` and `filters` are pure. Must not import `sink`, `aae`
or `node`. Start at `service`, then `queue_server`, then `window`.
"""
