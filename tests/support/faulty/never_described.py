#!/usr/bin/env python3
"""Starts and never answers."""

import time

time.sleep(600)
