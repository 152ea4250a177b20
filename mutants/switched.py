"""Mutants that are at fault in one region only, and are the correct kernel elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from kernel import Call, Kernel, Refused
from parts import AXES, OF_KEYS, OF_POSITIONS, WRITING, of_keys, replaced, with_heads
from regions import Part, Region
from weak_mutation import copied

Array = np.ndarray
Arrays = dict[str, Array]


def in_region(kernel: type[Kernel], region: Region) -> type[Kernel]:
    """``kernel`` in the region, and the correct kernel elsewhere."""
    part = region.part
    if part is not None and part.axis == "key":
        kernel, part = _of_later_keys(kernel, part.first), None

    class Switched(Kernel):
        def __init__(self) -> None:
            super().__init__()
            self.right, self.faulty = Kernel(), kernel()
            self.right.memory = self.faulty.memory = self.memory
            self.now: Kernel = self.right
            self.call: Call | None = None

        def run(
            self,
            inputs: Mapping[str, Array],
            attributes: Mapping[str, Any],
            outputs: Collection[str],
        ) -> Arrays:
            self.now, self.call = self.right, self._call(inputs, attributes, outputs)
            if self.call is None or not region.holds(self.call):
                return self.right.run(inputs, attributes, outputs)
            self.now = self.faulty
            if part is None:
                return self.faulty.run(inputs, attributes, outputs)
            right = self.right.run(inputs, attributes, outputs)
            try:
                wrong = self.faulty.run(inputs, attributes, outputs)
            except Exception:
                return right  # a call is rejected as a whole
            heads = self.call.heads
            return {n: _blend(n, a, wrong[n], part, heads) for n, a in right.items()}

        def bind(self, buffer: Array, present: Array) -> None:
            if part is None or self.now is self.right:
                self.now.bind(buffer, present)
                return
            wrong = buffer.copy()
            self.faulty.bind(wrong, present)
            self.right.bind(buffer, present)
            buffer[...] = _blend("present_key", buffer, wrong, part, 1)

        def _call(self, *given: Any) -> Call | None:
            """The call, or None if it must be rejected; such a call lies in no region."""
            try:
                with np.errstate(all="ignore"):
                    return self.right.known(*given)
            except (Refused, ArithmeticError, LookupError, TypeError, ValueError):
                return None

    return Switched


def _blend(name: str, right: Array, wrong: Array, part: Part, heads: int) -> Array:
    """``right`` with the part of ``wrong``; an output of another type or shape has no parts."""
    axis = AXES[name].get(part.axis)
    if axis is None or right.shape != wrong.shape or right.dtype != wrong.dtype:
        return right
    made = right.copy()
    place = (slice(None),) * axis + (slice(part.first, None),)
    with_heads(name, made, heads)[place] = with_heads(name, wrong, heads)[place]
    return made


def _of_later_keys(kernel: type[Kernel], first: int) -> type[Kernel]:
    """``kernel`` with each replaced step at fault only for the keys from ``first`` on."""
    if not of_keys(kernel):
        return Kernel
    steps = {name: _blended(name, vars(kernel)[name], first) for name in replaced(kernel)}
    return type(kernel.__name__, (Kernel,), steps)


def _blended(name: str, faulty: Callable[..., Any], first: int) -> Callable[..., Any]:
    correct = getattr(Kernel, name)

    def step(kernel: Kernel, *given: Any) -> Any:
        own = copied(given) if name in WRITING else given
        wrong, right = faulty(kernel, *own), correct(kernel, *given)
        if name in WRITING:
            argument, axis = WRITING[name]
            place = (slice(None),) * axis + (slice(first, None),)
            given[argument][place] = own[argument][place]
            return right
        if isinstance(right, tuple):
            pairs = zip(right, wrong, strict=True)
            return tuple(_mixed(name, kernel, given, *pair, first) for pair in pairs)
        return _mixed(name, kernel, given, right, wrong, first)

    return step


def _mixed(
    name: str, kernel: Kernel, given: tuple[Any, ...], right: Any, wrong: Any, first: int
) -> Any:
    """``right``, with ``wrong`` at the keys from ``first`` on."""
    try:
        right, wrong = np.broadcast_arrays(right, wrong)
    except ValueError:
        return right
    if name in OF_KEYS:
        axis = OF_KEYS[name] % right.ndim
        late = np.arange(right.shape[axis]) >= first
        return np.where(late.reshape(-1, *(1,) * (right.ndim - axis - 1)), wrong, right)
    call: Call = given[0]
    if name in OF_POSITIONS:
        places = given[-1]
    else:
        starts = [Kernel.start(kernel, call, b) for b in range(call.batch)]
        places = np.array(starts)[:, None] + np.arange(right.shape[1])
    late = places >= first
    return np.where(late.reshape(*late.shape, *(1,) * (right.ndim - 2)), wrong, right)
