#!/usr/bin/env python3
"""Nothing is wrong with this one."""

import miniature

miniature.serve()
