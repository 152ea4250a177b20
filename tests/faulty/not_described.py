#!/usr/bin/env python3
"""Answers describe with a dtype that does not exist."""

import miniature

miniature.serve(describe=lambda request: miniature.describe_itself(request, dtypes=["fp16"]))
