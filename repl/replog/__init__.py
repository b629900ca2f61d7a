"""The replicated log: one per node, append-only files, group commit over all partitions.

Imports `repl.model` and `repl.telemetry` only. `port` is the interface, `log` its implementation. Start at `log`, then
`writer` (group commit) and `recovery` (reading the files at start).
"""
