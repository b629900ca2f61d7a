"""Values that all packages of a cluster share: keys, vector clocks, objects, log entries, records, errors, ports. Pure.

No I/O, clock, randomness or logging. Spark executors import this package, so it must not import `config` or any other
package of `repl`. Start at `entry` and `objects`; `ports` has the protocols between layers.
"""
