#!/usr/bin/env python3
"""Starts and says nothing."""

import time

time.sleep(600)
