"""Source side of replication between clusters: named queues over the change index.

A queue is a window over what was applied, not a log of its own: per partition a durable cursor says up to where all
is acknowledged, and what lies above it is found in the change index. Pure rooms decide (`filters`, `window`,
`source_queue`), `registry` touches the loop, the store and the metastore. The story goes on in `sink`, which
fetches from here over HTTP.
"""
