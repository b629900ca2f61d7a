"""The parts of a node and what they answer together: wiring, cluster-wide queries, lag, explanations.

Must not import `client_api`, `admin_api` or `daemon`. Start at `container` (the parts) and `wiring` (how they are
built).
"""
