"""Outgoing HTTP: the only package that opens HTTP connections to other nodes and clusters.

`client` blocks and is the only module that imports requests; `async_client` runs on the event loop. Must not import
`repl.runtime` or anything above it. Start at `client`.
"""
