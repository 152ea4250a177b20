#!/usr/bin/env python3
"""A correct runner."""

import miniature

miniature.serve()
