"""The shell of the protocol core: carries out effects, feeds events, applies entries, owns threads and timers.

Imports everything of `repl` below it and neither `repl.coordinator` nor `repl.controller`. Start at `runtime`, then
`partition` (state of a replica in memory), `storage` and `applier`.
"""
