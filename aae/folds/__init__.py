"""Visit or change all keys of a type, a bucket or a range, over all nodes.

Must not import `aae.scheduling`. Start at `folds`; `fold_rpc` is the format between nodes.
"""
