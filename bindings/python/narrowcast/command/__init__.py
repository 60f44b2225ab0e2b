"""The command `narrowcast`."""
