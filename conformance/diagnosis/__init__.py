"""Explains failures: what they share, which known fault they are like, and the smallest of them."""
