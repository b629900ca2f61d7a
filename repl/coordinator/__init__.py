"""Client requests: routing to the partition's leader, write batches, reads, listings, tombstone removal.

Must not import `repl.controller`. Start at `coordinator`; `write_batch` decides a write, `forwarding` sends to
leaders on other nodes, `reads` answers gets.
"""
