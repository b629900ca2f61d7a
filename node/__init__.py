"""The roof: the daemon that builds every part from settings, its HTTP faces, the command line, the demo.

`daemon` reads top to bottom as the order in which a node comes up; `http` is what clients, sinks and
operators talk to; `cli` is `isthmus NOUN VERB`; `supervisor`, `topology` and `local` run clusters on this machine.
"""
