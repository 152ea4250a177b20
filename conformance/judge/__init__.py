"""Compares outcomes with contracts."""
