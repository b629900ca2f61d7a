"""`isthmus demo`: a history replayed into one of two clusters, and the proof that both hold it.

Reads a history (`history`, `made_history`), writes it over HTTP like any user (`client`, `replay`), watches
(`watch`, `view`, `costs`), compares (`verify`) and reports (`figures`); `run` is the whole in order. Knows the
product by its faces only: HTTP, the supervisor, nothing inside a node.
"""
