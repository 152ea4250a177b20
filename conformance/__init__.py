"""A differential conformance suite for com.microsoft.GroupQueryAttention."""

__version__ = "0.1.0"
