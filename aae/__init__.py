"""Full-sync."""
