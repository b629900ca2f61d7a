"""Source side of replication between clusters."""
