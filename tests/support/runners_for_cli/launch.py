"""Starts the miniature NAME of ``support/faulty``, a file or a lie of ``lies.py``, with int32.

Without int32, the type of seqlens_k, every case would be skipped.
"""

import importlib
import os
import sys

here = os.path.dirname(os.path.abspath(__file__))
faulty = os.path.join(os.path.dirname(here), "faulty")
sys.path[1:1] = [faulty]

import miniature  # noqa: E402

(dtypes,) = miniature.describe_itself.__defaults__
miniature.describe_itself.__defaults__ = (tuple(dict.fromkeys((*dtypes, "int32"))),)

name = sys.argv[1]
if any(os.path.exists(os.path.join(folder, f"{name}.py")) for folder in (here, faulty)):
    importlib.import_module(name)
else:  # imported, since its many lines take longer to compile than to run
    os.environ["LIE"] = name
    importlib.import_module("lies").serve()
