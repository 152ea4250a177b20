"""Starts the miniature NAME of ``tests/faulty``, a file or a lie of ``lies.py``, with int32.

Without int32, the type of seqlens_k, every case would be skipped.
"""

import os
import runpy
import sys

here = os.path.dirname(os.path.abspath(__file__))
faulty = os.path.join(os.path.dirname(here), "faulty")
sys.path.insert(0, faulty)

import miniature  # noqa: E402

(dtypes,) = miniature.describe_itself.__defaults__
miniature.describe_itself.__defaults__ = (tuple(dict.fromkeys((*dtypes, "int32"))),)

files = [os.path.join(folder, f"{sys.argv[1]}.py") for folder in (here, faulty)]
if not any(map(os.path.exists, files)):
    os.environ["LIE"] = sys.argv[1]
    files.append(os.path.join(faulty, "lies.py"))
runpy.run_path(next(file for file in files if os.path.exists(file)), run_name="__main__")
