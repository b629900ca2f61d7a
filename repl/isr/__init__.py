"""The replication protocol of one partition, pure: events and the time go in, effects and a deadline come out.

Nothing here does I/O, reads a clock, draws a random number, logs or knows asyncio. `replica.py` is the
only door and holds the list of transitions; `election.py` and `placement.py` are the controller's
plans; `invariants.py` names what must always hold. What carries the effects out is `repl.runtime`;
what runs this core under a seeded schedule of faults is `tests/sim`. Names such as R-GEN, H34 and I-ACK are
those of docs/protocol.md.
"""
