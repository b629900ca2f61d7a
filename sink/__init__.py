"""Sink side of replication between clusters."""
