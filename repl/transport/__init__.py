"""The wire to other nodes: today the one door for outgoing HTTP."""
