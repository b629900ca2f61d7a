"""Typed, frozen settings from TOML files, and the dynamic options and bucket properties of a cluster.

Imports nothing of Isthmus. Start at `settings` for the values, whose fields are annotated with forms of `validation`,
`relations` for the rules between them, and `loader` for how a file becomes settings; `schema` lists every key.
"""
