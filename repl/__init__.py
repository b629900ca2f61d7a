"""One cluster: objects, clocks, replicated log, in-sync replicas, election, metastore, store.

The way of a write through this floor: `coordinator` (request -> entries) -> `runtime` (entries ->
`isr` core -> `replog`) -> `apply` (durable entries -> `store`) -> hooks of the floors above.
"""
