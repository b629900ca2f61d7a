"""Typed, frozen settings from TOML files, and the dynamic options and bucket properties of a cluster.

Imports nothing of Isthmus. Start at `settings` for the values, `loader` for how a file becomes settings, and
`validation` for the rules between settings; `schema` lists every key with its type.
"""
