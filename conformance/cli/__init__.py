"""The command ``gqa``."""
