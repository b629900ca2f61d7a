"""One cluster: objects, clocks, replicated log, in-sync replicas, election, metastore, store.

The way of a write through this floor: `coordinator` (request -> entries) -> `runtime` (entries ->
`isr` core -> `replog`) -> `apply` (durable entries -> `store`) -> hooks of the floors above.

Packages: `model` (nouns), `isr` (the pure protocol), `replog`, `store`, `metastore`, `transport`. Rooms beside them:

    requests     coordinator, proposal, routes, forwarding, serving, kv_wire, reading, listing, tally, write_limits,
                 properties
    one node     runtime, partition, storage, apply, unapplied, promises, inbox, outbox, ticking, soft_cursors,
                 full_disk, expiry, rollback_alarm, measures, entry_times, durations, round_trips, telemetry,
                 timers, log_limits, metastore_copy
    its copies   attaching, settling, replay, copies, clearing, identity, slots, registering, far_serving, far_taking,
                 far_horizon
    the cluster  controller, creation, positions, announcements, balancing, handing_over, leaderships, moving,
                 relocating, placement_orders, bucket_types, option_settings, read_again, unclean
    reaping      reaping, reap_proposal, reaped_pushes, tombstones
"""
