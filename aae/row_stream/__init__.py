"""Key rows and objects as a stream for readers outside the cluster: Spark, other clusters.

`wire` and `blobs` also run on Spark executors and must not import `config`. Start at `streams`, then `wire`.
"""
