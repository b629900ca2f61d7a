"""The source side of replication between clusters: named queues over the index of changes.

A queue has a durable cursor in each partition. The changes above the cursor are in the change index; a window keeps
references to some of them in memory, and the others are read later.

    service            all queues of a node: applied entries, fetches, documents of the metastore
    queue_server       one queue: waiting fetches, reads of the store
    source_queue       decides what is served, when and to whom (pure)
    window             what waits and is in flight in one partition (pure); its rules are in `window_rules`, `filters`
    cursor_keeper      writes cursors
    queue_store        operators' documents in the metastore (`queue_documents`)
    admin              operators' acts and reports
    status, lag        listings, metrics, lag

Must not import `sink`, `aae` or `node`. Start at `service`, then `queue_server`, then `window`.
"""
