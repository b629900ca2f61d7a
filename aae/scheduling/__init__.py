"""When checks run, with which peer, their results, and operators' settings.

Must not import `aae.reconcile`. Start at `scheduler`, then `schedule`.
"""
