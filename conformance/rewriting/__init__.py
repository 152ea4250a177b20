"""Rewrites attention nodes into standard operators."""
