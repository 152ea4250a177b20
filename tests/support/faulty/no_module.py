#!/usr/bin/env python3
"""Imports a module that does not exist."""

import a_module_that_is_not_there

a_module_that_is_not_there.serve()
