"""The sink: fetches changes from queues of other clusters and pushes them into this cluster.

A change is acknowledged after this cluster has stored it; applying it twice changes nothing. `backoff` and
`scheduler` are pure. Must not import `aae` or `node`. Start at `service`, then `worker` (one cycle), `fetch` and
`push`.
"""
