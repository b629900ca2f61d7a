"""The nouns of one cluster, pure: keys, clocks, objects, log entries, references, records, errors, ports.

Nothing here does I/O, reads a clock, draws a random number or logs. What a Spark executor runs
imports this room and nothing above it. The story goes on in `repl.isr` (the protocol) and in
`repl.runtime` (where the nouns meet the disk).
"""
