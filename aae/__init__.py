"""Full-sync: proves two clusters equal by trees over their key stores, and repairs what differs.

In this version only its actor is here: every node starts it, and it says that nothing is configured.
"""
