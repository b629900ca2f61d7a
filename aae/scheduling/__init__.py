"""When full-sync runs, with which peer, what it found before, and what operators have set.

Must not import `aae.reconcile`. Start at `manager`, then `schedule`.
"""
