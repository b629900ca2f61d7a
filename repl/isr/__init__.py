"""The replication protocol of one partition, pure: events and the time go in, effects and a deadline come out.

No I/O, clock, randomness, logging or asyncio; imports `repl.model` only. Start at `replica`, which lists the
transitions; `leader`, `follower` and `candidate` are its roles; `events`, `effects` and `messages` are its input and
output. `repl.runtime` executes the effects. Names such as R-GEN, H34 and I-ACK are defined in docs/protocol.md.
"""
