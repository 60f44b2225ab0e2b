"""The command `narrowcast`: builds of plugins, and reports about formats."""
