#!/usr/bin/env python3
"""Describes itself, and reads no further input."""

import json
import sys
import time

import miniature

miniature.describe_itself(json.loads(sys.stdin.readline()))
time.sleep(600)
