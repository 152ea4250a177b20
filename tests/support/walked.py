"""Counts the functions and the types of the package on the way from a loaded case to its record."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from conformance.base.paths import data_path
from conformance.case.load import load_file
from conformance.results.records import ResultRecord
from conformance.run.engine import PlanRun
from conformance.run.target import target_plans
from conformance.targets.registry import target_for

#: What is made of a case before it runs is the oracle's own business.
_NOT_COUNTED = "conformance.oracle"


def is_counted(module: object) -> bool:
    """Whether a module is of the package, the oracle left out."""
    name = str(module)
    return name.startswith("conformance.") and not name.startswith(_NOT_COUNTED)


def walk(what: Callable[[], object]) -> tuple[set[str], set[str]]:
    """The functions of the package that ``what()`` enters, and the types that these deal with.

    A type counts where a function takes or returns one. Comprehensions, generator expressions and
    lambdas have no name and are left out, and so are the methods that a dataclass is given.
    """
    codes: dict[CodeType, str] = {}
    types: set[type] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        module = frame.f_globals.get("__name__")
        if event not in ("call", "return") or not is_counted(module):
            return
        code = frame.f_code
        if event == "return":
            types.add(type(argument))
            return
        types.update(
            type(frame.f_locals.get(name)) for name in code.co_varnames[: code.co_argcount]
        )
        if not code.co_name.startswith("<") and not code.co_filename.startswith("<"):
            codes[code] = f"{module}.{code.co_qualname}"

    sys.setprofile(note)
    try:
        what()
    finally:
        sys.setprofile(None)
    return set(codes.values()), {
        f"{of.__module__}.{of.__qualname__}" for of in types if is_counted(of.__module__)
    }


def walk_of_a_case() -> tuple[set[str], set[str]]:
    """The walk of a case of decode_shapes, on the CPU or else on the NumPy kernel.

    Of eight cases that are alike, since some functions are entered only if an answer is late. The
    runner has been started, and another case was run before.
    """
    installed = importlib.util.find_spec("onnxruntime")
    target = target_for("cpu" if installed else f"exec:{data_path('mutants') / 'runner.py'}")
    cases = load_file(data_path("cases") / "decode_shapes.yaml")
    first, *others = [case for case in cases if case.call.dtype == "float32"][:9]
    (plan,) = target_plans([first, *others], [target])
    python = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with patch.dict(os.environ, python), PlanRun(plan) as run:  # the kernel is a script
        assert isinstance(run.run_one(first).record, ResultRecord)
        return walk(lambda: [run.run_one(case) for case in others])
