"""Runs a model on a target as programs do, and compares its results."""
