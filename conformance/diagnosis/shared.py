"""Finds what failures share: the shortest ``-k`` expression that separates them from passing calls.

Spectrum-based fault localisation looks for the lines of a program that failing tests run and
passing ones do not. Here the properties of calls take the place of lines. An expression is judged
by its description length: its own bits, and the bits that then say which calls fail, among those
that it selects and among the others. So an expression must pay for its length, and neither a
passing call that it selects nor a failing one that it misses is forbidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from conformance.base.words import listed
from conformance.case.case import Case
from conformance.case.properties import VOCABULARY, sizes, values_meant
from conformance.operator.features import BY_NAME

Mask = npt.NDArray[np.bool_]

#: The theme of calls that were tried beside a run. They are not counted and not named.
BESIDE: Final = "beside_the_run"

#: The sizes whose thresholds, values and divisors are tried.
SIZES: Final = (
    "batch_size", "num_heads", "kv_num_heads", "group_size", "head_size", "sequence_length",
    "past_sequence_length", "total_sequence_length", "max_sequence_length", "local_window_size",
    "kv_sequence_length", "attended_keys", "padding_tokens", "rotary_dim", "smooth_softmax",
    "scale", "softcap", "qk_norm_epsilon", "q_norm_epsilon", "k_norm_epsilon",
)  # fmt: skip
#: Sizes that are compared with each other.
COMPARED: Final = (
    ("sequence_length", "local_window_size"),
    ("past_sequence_length", "local_window_size"),
    ("sequence_length", "past_sequence_length"),
    ("total_sequence_length", "local_window_size"),
    ("max_sequence_length", "local_window_size"),
    ("max_sequence_length", "total_sequence_length"),
    ("attended_keys", "total_sequence_length"),
)
DIVISORS: Final = (2, 4, 8, 16, 32, 64)
#: The most thresholds of a size, the most parts of an expression, and the most expressions that are
#: made longer at once.
MAX_THRESHOLDS: Final = 60
MAX_PARTS: Final = 4
_BEAM: Final = 12
#: An expression has to save this many bits, and each further part costs these beside its own. Two
#: failures are a pattern.
MIN_BITS: Final = 8.0
JOINING_BITS: Final = 4.0
MIN_FAILURES: Final = 2
#: An expression whose calls fail at least at this rate counts as "most of them fail".
MOST_FAIL: Final = 0.8


@dataclass(frozen=True)
class CasePattern:
    """An expression, and the calls that it selects, without what patterns before it select.

    ``selected`` are those that fail, ``passing`` the others.
    """

    expression: str
    selected: tuple[Case, ...]
    passing: tuple[Case, ...]

    @property
    def failures(self) -> int:
        """The number of selected calls of the run that fail."""
        return len(of_run(self.selected))

    @property
    def calls(self) -> int:
        """The number of selected calls of the run."""
        return self.failures + len(of_run(self.passing))

    @property
    def simplest(self) -> Case:
        """The simplest failing call of the run."""
        return min(of_run(self.selected), key=simplicity)

    @property
    def sentence(self) -> str:
        """The number of selected calls that fail: ``fails with `ragged` (8 of 9, not a/b)``."""
        passing = [case.id for case in of_run(self.passing)]
        names = f", not {listed(passing)}" if 0 < len(passing) <= 2 else ""
        return f"fails with `{self.expression}` ({self.failures:,} of {self.calls:,}{names})"


@dataclass(frozen=True)
class Shared:
    """What failures share.

    ``others``: the number of calls that no pattern selects; ``left``: the failures among them.
    """

    failures: int
    patterns: tuple[CasePattern, ...]
    others: int
    left: tuple[Case, ...]

    @property
    def exactly(self) -> str:
        """The expression that selects all failures and no call that passes; or empty."""
        is_exact = len(self.patterns) == 1 and not self.left and not self.patterns[0].passing
        return self.patterns[0].expression if is_exact else ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the failures share, a sentence each; none if they share nothing."""
        of_patterns = [one.sentence for one in self.patterns if one.failures]
        if not of_patterns:
            return ()
        first, *others = of_patterns
        left = of_run(self.left)
        if not left and not others:
            first = first.replace("with", "exactly with", bool(self.exactly))[:-1]
            return (f"{first[:1].upper()}{first[1:]}; 0 of {self.others:,} others).",)
        rest = f"of {self.others:,} other calls none fails"
        if left:
            names = ", ".join(case.id for case in left[:3]) + " …" * (len(left) > 3)
            rest = f"of {self.others:,} other calls {len(left):,} fail: {names}"
        return tuple(f"{text[:1].upper()}{text[1:]}." for text in (first, *others, rest))


def shared(
    failing: Sequence[Case], passing: Sequence[Case], least_bits: float = MIN_BITS
) -> Shared:
    """The patterns of ``failing`` calls among these and ``passing`` ones, the best first.

    Each saves at least so many bits. Either any expressions, or only those of which most calls
    fail: whichever list is shorter.
    """
    cases = [*failing, *passing]
    fails = np.arange(len(cases)) < len(failing)
    left: Mask = np.ones(len(cases), bool)
    patterns: list[CasePattern] = []

    def chosen(mask: Mask) -> tuple[Case, ...]:
        return tuple(cases[n] for n in np.flatnonzero(mask))

    for expression, selected in _shortest(cases, fails, least_bits) if passing else ():
        patterns.append(
            CasePattern(expression, chosen(selected & fails), chosen(selected & ~fails))
        )
        left &= ~selected
    number, others = len(of_run(failing)), len(of_run(chosen(left)))
    return Shared(number, tuple(patterns), others, chosen(left & fails))


def of_run(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The calls that were not tried beside the run."""
    return tuple(case for case in cases if case.theme != BESIDE)


def _shortest(cases: Sequence[Case], fails: Mask, least_bits: float) -> list[tuple[str, Mask]]:
    """The shorter list of expressions, each with the calls that it and none before it selects."""
    if np.count_nonzero(fails) < MIN_FAILURES:
        return []
    parts = Parts(cases)
    lists = []
    for least in (0.0, MOST_FAIL):
        left, bits = np.ones(len(cases), bool), 0.0
        found: list[tuple[str, Mask]] = []
        while np.count_nonzero(fails & left) >= MIN_FAILURES:
            best = parts.best(fails, left, least, least_bits)
            if best is None:
                break
            found.append((best[0], best[1]))
            left = left & ~best[1]
            bits += best[2]
        lists.append((bits + float(_code((fails & left).sum(), left.sum())), len(found), found))
    return min(lists, key=lambda one: one[:2])[2]


def simplicity(case: Case) -> tuple[int, int]:
    """The key that sorts calls by simplicity: features that are not plain, then effort."""
    plain = sum(value == BY_NAME[name].plain for name, value in case.features.items())
    return len(BY_NAME) - plain, effort(case)


def effort(case: Case) -> int:
    """The number of attention scores of a call times its head size: how large it is."""
    call = case.call
    of_steps = (
        len(step.total_lengths) * max(step.sequence_length, 1) * step.total_sequence_length
        for step in case.steps
    )
    return call.num_heads * call.head_size * sum(of_steps)


class Parts:
    """The ``-k`` words and comparisons that select some ``cases``, each with its length in bits."""

    def __init__(self, cases: Sequence[Case]) -> None:
        shortest: dict[bytes, tuple[float, int, str]] = {}
        masks: dict[bytes, Mask] = {}
        for bits, text, mask in (*_words(cases), *_sizes(cases)):
            key, known = mask.tobytes(), (bits, len(text), text)
            if mask.any() and not mask.all():
                shortest[key] = min(shortest.get(key, known), known)
                masks[key] = mask
        self._texts = [text for _, _, text in shortest.values()]
        self._bits = np.array([bits for bits, _, _ in shortest.values()])
        self._masks = np.array([masks[key] for key in shortest], bool).reshape(-1, len(cases))
        self._numbers = self._masks.astype(np.float32)

    def best(
        self, fails: Mask, left: Mask, least: float, least_bits: float
    ) -> tuple[str, Mask, float] | None:
        """The expression that describes best which of the calls in ``left`` fail, what it selects,
        and the bits of both; None if none is shorter than a list of the failures.

        At ``least`` this share of what it selects fails.
        """
        total, failures = np.count_nonzero(left), np.count_nonzero(fails & left)
        shortest = float(_code(failures, total)) - least_bits
        found: tuple[tuple[int, ...], Mask, float] | None = None
        beam: list[tuple[tuple[int, ...], Mask, float]] = [((), left, 0.0)]
        for _ in range(MAX_PARTS):
            if not beam or not self._texts:
                break
            longer: dict[tuple[int, ...], tuple[float, Mask, float]] = {}
            masks = np.array([mask for _, mask, _ in beam])
            counted = self._numbers @ np.concatenate((masks, masks & fails)).T.astype(np.float32)
            each = counted.T.astype(np.intp).reshape(2, len(beam), -1)
            for (parts, mask, length), calls, bad in zip(beam, *each, strict=True):
                bits = self._bits + length + JOINING_BITS * bool(parts)
                inside = bits + _code(bad, calls)
                score = inside + _code(failures - bad, total - calls)
                score[bad * (total - calls) <= (failures - bad) * calls] = np.inf
                for n in np.argsort(score, kind="stable")[:_BEAM]:
                    if np.isfinite(score[n]) and n not in parts:
                        names, selected = tuple(sorted((*parts, int(n)))), mask & self._masks[n]
                        longer[names] = float(score[n]), selected, float(bits[n])
                rates = bad / np.maximum(calls, 1)
                allowed = np.where(rates >= least, score, np.inf)
                if allowed.min() < shortest:
                    n = int(allowed.argmin())
                    shortest = float(allowed[n])
                    found = (*parts, n), mask & self._masks[n], float(inside[n])
            beam = [
                (parts, mask, length)
                for parts, (_, mask, length) in sorted(longer.items(), key=lambda one: one[1][0])
            ][:_BEAM]
        if found is None:
            return None
        chosen = sorted(found[0], key=lambda n: (self._bits[n], self._texts[n]))
        return " and ".join(self._texts[n] for n in chosen), found[1], found[2]


_Part = tuple[float, str, Mask]


def _words(cases: Sequence[Case]) -> Iterator[_Part]:
    """The words of features and their pieces, as `word_test` takes them, and ``feature=value``."""
    values = {name: np.array([str(case.features[name]) for case in cases]) for name in BY_NAME}
    words = {*VOCABULARY, *(piece for word in VOCABULARY for piece in word.split("_"))}
    for word in sorted(words):
        mask = np.zeros(len(cases), bool)
        for name, feature in BY_NAME.items():
            mask |= np.isin(values[name], [*values_meant(word, feature)])
        bits = math.log2(len(words)) + (word not in VOCABULARY)
        yield bits, word, mask
        yield bits + 1, f"not {word}", ~mask
    for name, feature in BY_NAME.items():
        for value in feature.values:
            bits = math.log2(len(BY_NAME) * len(feature.values)) + 2
            yield bits, f"{name}={value}", values[name] == value


def _sizes(cases: Sequence[Case]) -> Iterator[_Part]:
    """Thresholds, values and divisors of sizes, and sizes compared with each other."""
    found = {name: [tuple(sizes(name, case)) for case in cases] for name in SIZES}
    low = {name: np.array([min(of, default=np.nan) for of in found[name]]) for name in SIZES}
    high = {name: np.array([max(of, default=np.nan) for of in found[name]]) for name in SIZES}
    for name, of in found.items():
        known = sorted({size for some in of for size in some})
        chosen = known[:: max(1, len(known) // MAX_THRESHOLDS)]
        bits = math.log2(len(SIZES)) + math.log2(len(chosen) + 1) + 2
        for size in chosen:
            is_power = size.is_integer() and int(size) & (int(size) - 1) == 0
            length, number = bits - is_power, f"{size:g}"
            yield length, f"{name}>={number}", high[name] >= size
            yield length, f"{name}>{number}", high[name] > size
            yield length, f"{name}<={number}", low[name] <= size
            yield length, f"{name}<{number}", low[name] < size
            mask = np.array([size in some for some in of])
            yield length - 0.5, f"{name}={number}", mask
            yield length + 2, f"{name}!={number}", ~mask
        for divisor in DIVISORS:
            mask = np.array([any(size % divisor == 0 for size in some) for some in of])
            bits = math.log2(len(SIZES) * len(DIVISORS)) + 2
            yield bits, f"{name}%{divisor}=0", mask
            yield bits, f"{name}%{divisor}!=0", ~mask
    for one, other in COMPARED:
        bits = math.log2(len(SIZES)) + math.log2(len(COMPARED)) + 2
        yield bits, f"{one}>{other}", high[one] > low[other]
        yield bits, f"{one}<{other}", low[one] < high[other]


@lru_cache(1)
def _factorials(most: int) -> npt.NDArray[np.float64]:
    """The logarithms to base 2 of the factorials up to ``most``."""
    return np.concatenate(([0.0], np.cumsum(np.log2(np.arange(1, most + 1)))))


def _code(some: npt.ArrayLike, of: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The bits that encode which ``some`` of so many calls fail: the number, and the choice."""
    k, n = np.asarray(some, np.intp), np.asarray(of, np.intp)
    logs = _factorials(1 << int(n.max(initial=1)).bit_length())
    bits: npt.NDArray[np.float64] = logs[n] - logs[k] - logs[n - k] + np.log2(n + 1.0)
    return bits
