"""The sink: fetches changes from queues of other clusters and pushes them into this one.

`backoff` and `roster` decide who fetches when, purely; `fetch` and `push` do one half of a cycle each; `worker` is a
cycle; `crew` has the workers; `actor` owns the suspensions and the numbers. A change is acknowledged only after this
cluster has stored it, so a crash anywhere means that it comes again, and applying it twice changes nothing.
"""
