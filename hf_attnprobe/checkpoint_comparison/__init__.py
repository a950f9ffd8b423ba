"""Several checkpoints beside one another in one table."""
