"""A node's services: their wiring, queries to all nodes, and the status documents made of the answers.

Must not import `client_api`, `admin_api` or `daemon`. Start at `container` (the components) and `cluster_query` (the
queries to all nodes).
"""
