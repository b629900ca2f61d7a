"""Connections between the nodes of one cluster: frames, handshake, priority lanes, RPC.

Must not import `repl.runtime` or `repl.store`. Start at `port`, then `links`, which owns a node's connections;
`codec` is the format of messages and `frames` that of frames.
"""
