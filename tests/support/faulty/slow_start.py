#!/usr/bin/env python3
"""Needs half a second before it describes itself."""

import time

import miniature

time.sleep(3)
miniature.serve()
