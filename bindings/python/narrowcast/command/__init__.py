"""What the command `narrowcast` does."""
