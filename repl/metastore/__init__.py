"""Where a cluster agrees: partition records, registrations, log identities, owners. Small values, never data.

`port` is the interface; `metastore` implements it on a tree of znodes (`tree_port`), `zookeeper` on a ZooKeeper
through `zookeeper_session`, the only module that imports kazoo. `embedded_zookeeper` runs a ZooKeeper on this
machine. `watched_document` is a small value with a codec, for settings that operators change; `joined_document` makes
several of them one. Must not import `repl.isr`, `repl.store` or anything above them. Start at `port`, then `metastore`.
"""
