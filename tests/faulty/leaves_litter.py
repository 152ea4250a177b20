#!/usr/bin/env python3
"""Leaves unreadable folders among its output files, and dies."""

import os

import miniature


def fault(request):
    folder = os.path.join(request["out"], "temporary", "deep")
    os.makedirs(folder)
    with open(os.path.join(folder, "file"), "w") as file:
        file.write("litter")
    os.symlink(request["bundle"], os.path.join(request["out"], "link"))
    os.chmod(folder, 0)
    os.abort()


miniature.serve(fault)
