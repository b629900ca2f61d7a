"""One cluster: objects, replicated log, in-sync replicas, metastore, store, and the node-to-node protocol.

A write goes through `coordinator` (request to entries), `runtime` (entries to the `isr` core and the `replog`) and
`runtime.applier` (durable entries to the `store`). `controller` elects leaders and places replicas. Must not import
`queues`, `sink`, `aae` or `node`. Start at `coordinator.coordinator`, then `runtime.runtime`, then `isr.replica`.
"""
