"""Full-sync: proves two clusters equal by comparing trees over their keys, and repairs what differs.

`trees` keeps the trees of a node, `exchange` compares with another cluster, `scheduling` decides when, `scrub`
checks this cluster's own rows, `reconcile` runs on Spark. Must not import `sink` or `node`. Start at `service`,
then `scheduling.manager` and `exchange.exchange`.
"""
