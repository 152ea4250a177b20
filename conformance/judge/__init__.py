"""Compares outcomes with contracts and with expectations."""
