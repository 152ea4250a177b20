#!/usr/bin/env python3
"""Dies, and leaves a child process that holds its pipes open."""

import os
import subprocess

import miniature


def fault(request):
    subprocess.Popen(["sleep", "600"])
    os.abort()


miniature.serve(fault)
