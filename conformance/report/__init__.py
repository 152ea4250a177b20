"""Results, made into something people look at."""

from __future__ import annotations

from conformance.report.html import render

__all__ = ["render"]
