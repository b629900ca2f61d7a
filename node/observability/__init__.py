"""Logging set-up, the metrics document, and the program's version.

Must not import other packages of `node`. Start at `logs`.
"""
