"""Full-sync: prove two clusters equal by comparing trees over their keys, and repair what differs.

`trees` has the trees of a node, `exchange` compares them with another cluster, `scheduling` decides when, `scrub`
checks the rows of this cluster, `folds` passes over all keys, `reconcile` has the Spark jobs. `ports` lists what the
node provides. Must not import `sink` or `node`. Start at `service`, then `scheduling.scheduler` and
`exchange.exchange`.
"""
