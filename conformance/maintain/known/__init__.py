"""Writes expectations from results: ``gqa expect``."""
