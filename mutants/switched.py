"""Mutants that are faulty in some calls only, and equal to the correct kernel in others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from kernel import Call, Kernel, Refused

Array = np.ndarray


def in_calls(kernel: type[Kernel], predicate: str) -> type[Kernel]:
    """``kernel`` in calls for which ``predicate`` holds, and the correct kernel in others.

    ``predicate`` is an expression over the fields and properties of `Call`, such as ``batch > 1 and
    sliding``.
    """
    code = compile(predicate, "<predicate>", "eval")

    class Switched(Kernel):
        def __init__(self) -> None:
            super().__init__()
            self.right, self.faulty = Kernel(), kernel()
            self.right.memory = self.faulty.memory = self.memory
            self.now: Kernel = self.right

        def run(
            self,
            inputs: Mapping[str, Array],
            attributes: Mapping[str, Any],
            outputs: Collection[str],
        ) -> dict[str, Array]:
            call = self._call(inputs, attributes, outputs)
            holds = call is not None and eval(code, {"__builtins__": {}}, _Names(call))
            self.now = self.faulty if holds else self.right
            return self.now.run(inputs, attributes, outputs)

        def bind(self, buffer: Array, present: Array) -> None:
            self.now.bind(buffer, present)

        def _call(self, *given: Any) -> Call | None:
            """The call, or None if it must be rejected."""
            try:
                with np.errstate(all="ignore"):
                    return self.right.known(*given)
            except (Refused, ArithmeticError, LookupError, TypeError, ValueError):
                return None

    return Switched


class _Names(dict[str, Any]):
    """The names that a predicate can use."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call = call

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(self._call, name)
        except AttributeError:
            raise NameError(f"a call has no {name}") from None
