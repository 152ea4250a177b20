#!/usr/bin/env python3
"""Answers with another case's id."""

import miniature


def fault(request):
    miniature.ran({**request, "id": request["id"] + 1})


miniature.serve(fault)
