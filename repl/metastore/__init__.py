"""Where a cluster agrees: partition records, registrations, gens, owners. Small values, never data.

`port` says what the others may expect; `zookeeper` is the real thing (over `link`, the door to its driver), `memory`
its twin with faults at will, `records` their bytes. `embedded` and `java` know how to run a ZooKeeper on this machine.
"""
