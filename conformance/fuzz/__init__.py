"""Draws calls that nobody has written, and names each fault that they find once."""
