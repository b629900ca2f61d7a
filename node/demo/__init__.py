"""`isthmus demo`: replays a history into one of two clusters, breaks things, and proves both equal.

Uses the product as a user does: HTTP and local clusters, nothing inside a node. Start at `run`.
"""
