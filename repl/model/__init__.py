"""Values of one cluster, pure: keys, vector clocks, objects, log entries, records, errors, ports.

No I/O, clock, randomness or logging. Spark executors import this package, so it must not import `config` or any
other package of `repl`. Start at `entry` and `objects`; `ports` has the protocols that upper layers use.
"""
