"""Where a cluster agrees: partition records, registrations, gens, owners. Small values, never data.

`port` says what the others may expect; `tree` keeps it above a tree of znodes (with `presence`: who is here, `mirror`:
what is read again only when it changed, `records`: the bytes). `zookeeper` has it in a ZooKeeper (over `link`, the
door to its driver; `rollback` tells why nothing connects), `memory` in this process, with faults at will. `embedded`
and `java` know how to run a ZooKeeper on this machine.
"""
