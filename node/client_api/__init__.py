"""HTTP routes for clients, sinks and other clusters: objects, batches, listings, queues, trees, row streams.

Must not import `admin_api` or `daemon`. Start at `application`, then `objects`.
"""
