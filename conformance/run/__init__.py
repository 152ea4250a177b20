"""Runs cases on targets and makes records of the results."""
