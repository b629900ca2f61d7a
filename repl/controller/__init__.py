"""Tasks that one node does for the cluster: election, placement, reassignment, leader balance, bucket types.

Must not import `repl.coordinator`. The planning modules (`election`, `placement`, `reassignment_plan`,
`reassignment_progress`, `leader_balance_plan`) are pure. Start at `controller`.
"""
