"""Hypothesis, whose examples are the same in every run; 0.8 s to import."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

__all__ = ["example", "given", "settings", "st"]

settings.register_profile("suite", deadline=None, derandomize=True, database=None)
settings.load_profile("suite")
