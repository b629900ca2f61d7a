"""Clusters on one machine: topology files, the supervisor and its children, ports, development certificates.

Must not import `node.services` or the HTTP APIs. Start at `clusters`, then `supervisor`.
"""
