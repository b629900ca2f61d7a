"""A node's certificates, tokens and authorization guards, built from its settings.

`certificates` is the only module that imports cryptography. Must not import `services` or anything above it. Start
at `credentials`.
"""
