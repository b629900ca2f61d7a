"""The roof."""
