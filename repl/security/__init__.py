"""TLS, peer tokens, and files that are read again when they change.

Used by every listener and every client of a node. Must not import `repl.transport` or `repl.http`. Start at `tls`.
"""
