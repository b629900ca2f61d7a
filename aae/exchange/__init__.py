"""Compare two clusters: trees, then differing segments, then keys, then repairs.

Must not import `aae.scheduling`. Start at `exchange`, which is a generator without I/O; `run` drives it; `local`,
`cluster` and `remote` are its two ends.
"""
