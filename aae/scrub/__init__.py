"""Check this cluster's own rows and replicas against each other, and repair rows that are damaged.

Must not import `aae.scheduling` or `aae.exchange`. Start at `row_audit`, then `row_repair`.
"""
