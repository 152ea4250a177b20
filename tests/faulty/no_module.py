#!/usr/bin/env python3
"""Needs a module that is not there."""

import a_module_that_is_not_there

a_module_that_is_not_there.serve()
