"""Names the known fault whose wrong values a target returns: a fault dictionary of kernels.

``mutants/`` has a correct kernel and some 400 small faults of it. A fault explains failures if the
kernel with this fault returns the target's values, within the error budget, for the simplest
failure and for most of those that it changes, and does not break calls that pass on the target.
If it would break more, a short expression must tell these from the failures. If no fault explains
failures, one that makes the same calls wrong is similar.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any, Final
from zlib import crc32

from conformance.base.words import plural
from conformance.bundle.variants import Outputs
from conformance.case.case import Case
from conformance.diagnosis.faulty_kernels import FaultyKernels, SampledCall
from conformance.diagnosis.shared import CasePattern, effort, of_run, shared, simplicity
from conformance.oracle.tolerance import TargetClass

#: Failures of a group that are sampled, and of all that a similar fault is tried with.
FAILURES: Final = 8
SIMILAR: Final = 30
#: The share of the time in which a fault is looked for that explains failures. In the rest a
#: similar one is.
NAMED: Final = 0.75
#: Passing calls sampled that differ from each other as much as possible.
SPREAD: Final = 16
#: Passing calls sampled in all: also those nearest to the failures, alternating with random ones.
TRIED: Final = 1000
#: Passing calls that are tried even if the time is up: otherwise nothing is named.
ENOUGH: Final = 400
#: One unexplained failure is allowed for this many explained ones: a kernel has several faults.
EXCEPTIONS: Final = 2
#: A fault that breaks more of the passing calls than this does not explain failures everywhere.
BROKEN: Final = 2
#: As many of them are enough to tell them from the failures.
TOLD_APART: Final = 100
#: A fault is named with a condition if at least so many calls of a run fail.
LEAST: Final = 8
#: An expression may place so many of either wrongly.
TOLD: Final = 0.05
#: After so many failures, a fault that may be similar is tried further if it has half as many wrong
#: elements in common as the best one; so many faults are tried to the end, with so many passing
#: calls.
SEEDS: Final = 3
NEAREST: Final = 8
SIMILAR_TRIED: Final = 60
#: A similar fault has at least this product of three shares: the wrong elements that it has in
#: common, the failures that it makes wrong, and the passing calls that it keeps. Others that reach
#: this share of it are as near.
LIKENESS: Final = 0.5
NEARLY: Final = 0.97
#: It breaks at most this share of the passing calls that are tried, half of them like the failures.
MAX_BROKEN: Final = 0.2
#: It is looked for if at least so many calls of a run fail, and at most this share of all calls.
MIN_SIMILAR: Final = 3
MAX_SHARE: Final = 0.65
#: The most faults of a group that are looked for.
MAX_FAULTS: Final = 3
#: Calls with more than this many products of scores are not sampled, or not tried.
MAX_EFFORT: Final = 20_000_000
MAX_EFFORT_TRIED: Final = 2_000_000
#: Calls are sampled from the simplest ones, at most this many.
SIMPLE: Final = 200
#: If the sampled calls do not tell several faults apart, up to this many are named.
MAX_NAMES: Final = 3

#: The outputs of a call on the target; None if it does not run.
OutputsOf = Callable[[Case], Outputs | None]


@dataclass(frozen=True)
class MatchingFault:
    """A fault whose values the target returns, or several that no sampled call tells apart.

    ``explained``: the failures that were run again and have the values of the fault. ``others``:
    the other failures that were run again. ``broken``: passing calls that fail with this fault.
    ``only``: an expression that selects the failures and none of these calls, if they are many.
    ``contrary``: failures that the fault makes wrong in another way. ``similar``: the fault only
    makes the same calls wrong, with other values.
    """

    names: tuple[str, ...]
    sentences: tuple[str, ...]
    explained: tuple[Case, ...]
    others: tuple[Case, ...] = ()
    broken: tuple[Case, ...] = ()
    only: str = ""
    contrary: tuple[Case, ...] = ()
    similar: bool = False

    @property
    def sentence(self) -> str:
        """The fault in words, the number of failures that it explains, and the exceptions."""
        texts = "; or ".join(f"{t[:1].lower()}{t[1:].rstrip('.')}" for t in self.sentences)
        fault = f"{texts} ({', '.join(self.names)})"
        tried = len(self.explained) + len(self.others)
        number = f"{len(self.explained)} of {tried} failures"
        if self.similar:
            beside = f" and {plural(len(self.broken), 'other call')}" if self.broken else ""
            return f"Similar to: {fault}, which makes {number}{beside} wrong, with other values."
        number += " that were run again"
        but = f", but not in {_example(self.others)}" if self.others else ""
        if self.broken:
            calls = plural(len(self.broken), "call")
            where = "in other calls it would" if self.only else "it would also"
            but += f"; {where} break {calls} that passed, such as {_example(self.broken)}"
        only = f", but only with `{self.only}`" if self.only else ""
        start = "Similar to:" if self.contrary else "As if"
        return f"{start} {fault}{only}: it gives the same wrong values in {number}{but}."


@dataclass
class FaultComparison:
    """A target that is compared with ``kernels`` that have known faults.

    ``passing`` are calls that pass on it, and ``outputs_of`` runs a call on it. Its error budgets
    are those of ``target_class``. ``until`` is a time of `time.monotonic`, when it stops.
    """

    passing: Sequence[Case]
    outputs_of: OutputsOf
    target_class: TargetClass
    kernels: FaultyKernels
    until: float = float("inf")
    right: dict[str, SampledCall | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        small = (case for case in _small(self.passing) if effort(case) <= MAX_EFFORT_TRIED)
        self.passing = sorted(small, key=lambda case: crc32(case.id.encode()))

    def faults(
        self,
        groups: Sequence[Sequence[Case]],
        shared_by: str = "",
        smallest: Sequence[Case] = (),
    ) -> list[MatchingFault]:
        """The faults that explain failures, in the order of the groups, or else a similar one.

        Some calls of each of the ``groups`` of failing calls are sampled. ``shared_by`` is an
        expression that selects all failures and no call that passes. Of the ``smallest`` failing
        calls, if they were looked for, one must be explained.
        """
        found: dict[tuple[str, ...], list[MatchingFault]] = {}
        failing: dict[tuple[str, ...], list[Case]] = {}
        known: set[str] = set()
        until, now = self.until, time.monotonic()
        self.until = now + (until - now) * NAMED
        sampled = [self._calls(_spread(group, FAILURES)) for group in groups]
        for group, calls in zip(groups, sampled, strict=True):
            left = [call for call in calls if call.case.id not in known]
            for one in self._in_group(left, group):
                found.setdefault(one.names, []).append(one)
                failing.setdefault(one.names, []).extend(group)
                known |= {case.id for case in one.explained}
        merged = [_merged(parts, failing[names], shared_by) for names, parts in found.items()]
        named = [one for one in merged if one is not None]
        every = [*chain.from_iterable(sampled)]
        named += self._both(named, [call for call in every if call.case.id not in known])
        self.until = until
        explained = [case for one in named for case in one.explained]
        unexplained = len(every) - len({case.id for case in explained})
        calls = self._calls(smallest)
        names = [one.names[0] for one in named]
        is_small = not calls or any(self._explains(call, n) for call in calls for n in names)
        if not is_small or 2 * len(explained) <= unexplained:
            return self._similar(calls, [*chain.from_iterable(groups)])
        return [
            replace(one, contrary=self._contrary(one, failing.get(one.names, ()), names))
            for one in named
        ]

    def _contrary(
        self, one: MatchingFault, failing: Sequence[Case], names: Sequence[str]
    ) -> tuple[Case, ...]:
        """The failures that the fault makes wrong in another way.

        No other of the ``names`` explains them, nor the fault together with another one.
        """
        name = one.names[0]
        others = [other for other in names if other != name]
        tried = (*others, *(f"{name}+{other}" for other in others))
        return _cases(
            call
            for call in self._further(failing, one.explained)
            if not self._is_alike(call, name)
            and not any(self._explains(call, each) for each in tried)
        )

    def _further(self, failing: Sequence[Case], known: Sequence[Case] = ()) -> list[SampledCall]:
        """More failures than those that are sampled: simple, large and random ones."""
        left = sorted((case for case in _small(failing) if case not in known), key=effort)
        mixed = sorted(left[:-FAILURES], key=lambda case: crc32(case.id.encode()))
        chosen = (*_spread(left, FAILURES), *left[-FAILURES:], *mixed[:FAILURES])
        return self._calls([*{case.id: case for case in chosen}.values()])

    def _is_alike(self, call: SampledCall, fault: str) -> bool:
        """Whether the fault returns right values, or those of the target, maybe in some steps."""
        outputs = self.kernels.outputs(call, fault)
        return outputs is not None and (
            call.is_right(outputs) or call.is_explained(outputs, in_some_steps=True)
        )

    def _in_group(
        self, samples: Sequence[SampledCall], group: Sequence[Case]
    ) -> list[MatchingFault]:
        """The faults that explain together most samples; the first one explains the simplest."""
        found: list[MatchingFault] = []
        left = samples
        while left and len(found) < MAX_FAULTS and (one := self._explained(left, group)):
            found.append(one)
            left = [call for call in left if call.case not in one.explained]
        return found if 2 * len(left) < len(samples) else []

    def _explained(
        self, samples: Sequence[SampledCall], group: Sequence[Case]
    ) -> MatchingFault | None:
        """The fault that explains the first sample, and others, best.

        None if no fault does, or if the time is up before it was tried with passing calls.
        """
        first = samples[0]
        like = {n: [first] for n in self.kernels.changing(first) if self._explains(first, n)}
        others = dict.fromkeys(like, 0)
        partly: dict[str, list[SampledCall]] = {name: [] for name in like}
        for call in samples[1:]:
            for name in like:
                outputs = self.kernels.outputs(call, name)
                if outputs is not None and call.is_explained(outputs):
                    like[name].append(call)
                elif outputs is not None and call.is_explained(outputs, in_some_steps=True):
                    partly[name].append(call)
                elif outputs is None or not call.is_right(outputs):
                    others[name] += 1
        like = {
            name: calls
            for name, calls in like.items()
            if len(calls) >= max(min(2, len(samples)), others[name] * EXCEPTIONS)
        }
        broken = self._broken(like, samples, BROKEN)
        everywhere = [name for name in broken if len(broken[name]) <= BROKEN]
        if not everywhere:  # in some calls only, it must explain all samples
            whole = [n for n in like if len(like[n]) + len(partly[n]) == len(samples)]
            broken = self._broken(whole, samples, TOLD_APART, ENOUGH)
        names = everywhere or [*broken]
        further = self._further(group) if len(names) > 1 else []  # may tell them apart
        more = {name: sum(self._explains(call, name) for call in further) for name in names}
        order = {n: (len(like[n]) + more[n], -others[n] - len(broken[n])) for n in names}
        best = tuple(name for name in order if order[name] == max(order.values()))
        if not 0 < len(best) <= (MAX_NAMES if everywhere else 1):
            return None
        explained = [*like[best[0]], *(() if everywhere else partly[best[0]])]
        return self._matching(best, explained, samples, broken[best[0]])

    def _matching(
        self, names: tuple[str, ...], explained: Sequence[SampledCall],
        samples: Sequence[SampledCall], broken: Sequence[Case], similar: bool = False,
    ) -> MatchingFault:  # fmt: skip
        others = (call for call in samples if call not in explained)
        sentences = tuple(self.kernels.sentences[name] for name in names)
        return MatchingFault(
            names, sentences, _cases(explained), _cases(others), tuple(broken), similar=similar
        )

    def _both(
        self, found: Sequence[MatchingFault], samples: Sequence[SampledCall]
    ) -> Iterator[MatchingFault]:
        """Two faults that explain together what neither explains."""
        for pair in combinations([one for one in found if not one.only], 2):
            name = "+".join(one.names[0] for one in pair)
            if both := _cases(call for call in samples if self._explains(call, name)):
                text = ", and ".join(one.sentences[0].rstrip(".") for one in pair)
                yield MatchingFault((name,), (text,), both)

    def _similar(
        self, smallest: Sequence[SampledCall], failing: Sequence[Case]
    ) -> list[MatchingFault]:
        """The fault that makes most nearly the same elements of the same calls wrong.

        None if no fault comes near, if faults of several areas of the operator come equally near,
        or if few calls fail, or most of them: then most faults are alike.
        """
        samples = [*smallest[:1], *self._calls(_spread(failing, FAILURES))]
        most = MAX_SHARE * (len(failing) + len(self.passing))
        if not samples or len(of_run(failing)) < MIN_SIMILAR or len(failing) > most:
            return []
        overlaps = self._overlaps(samples)
        nearest = sorted(overlaps, key=lambda name: -overlaps[name])[:NEAREST]
        chosen = [SampledCall(case, (), self.target_class) for case in _spread(failing, SIMILAR)]
        order = _telling(self.passing, [call.case for call in samples])[:SIMILAR_TRIED]
        right = [*filter(None, map(self._right_call, order))]
        hits, broken = self._wrong_with(nearest, chosen), self._wrong_with(nearest, right)
        if self._is_over():
            return []
        likeness = {
            name: overlaps[name]
            * (len(hits[name]) / len(chosen))
            * (1 - len(broken[name]) / max(len(right), 1))
            for name in nearest
        }
        best = max(nearest, key=lambda name: likeness[name], default="")
        least = max(LIKENESS, NEARLY * likeness.get(best, 0.0))
        spared = MAX_BROKEN * len(right)
        near = [n for n in nearest if likeness[n] >= least and len(broken[n]) <= spared]
        if best not in near or len({self.kernels.areas[name] for name in near}) != 1:
            return []
        others = _cases(broken[best])
        return [self._matching((best,), hits[best], chosen, others, similar=True)]

    def _wrong_with(
        self, names: Sequence[str], calls: Sequence[SampledCall]
    ) -> dict[str, list[SampledCall]]:
        """The calls that each fault breaks, of those that are tried before the time is up."""
        wrong: dict[str, list[SampledCall]] = {name: [] for name in names}
        for call in calls:
            if self._is_over():
                break
            if self._is_computed(call):
                for name in names:
                    wrong[name] += [call] * (not self._keeps(call, name))
        return wrong

    def _overlaps(self, samples: Sequence[SampledCall]) -> dict[str, float]:
        """The share of wrong elements that each fault has in common with the target."""
        sums = dict.fromkeys(self.kernels.changing(samples[0]), 0.0)
        for number, call in enumerate(samples, start=1):
            for name in sums:
                outputs = None if self._is_over() else self.kernels.outputs(call, name)
                sums[name] += 0.0 if outputs is None else call.overlap(outputs)
            least = max(sums.values(), default=0.0) / 2 if number >= SEEDS else 0.0
            sums = {name: overlap for name, overlap in sums.items() if overlap >= least}
        return {name: overlap / len(samples) for name, overlap in sums.items()}

    def _broken(
        self, names: Iterable[str], samples: Sequence[SampledCall], most: int, tried: int = TRIED
    ) -> dict[str, list[Case]]:
        """The passing calls of so many ``tried`` ones that each fault would break: one more than
        ``most``, or all. Empty if the time is up before enough of them were tried.
        """
        broken: dict[str, list[Case]] = {name: [] for name in names}
        order = _telling(self.passing, [call.case for call in samples]) if broken else []
        for number, case in enumerate(order[:tried]):
            left = [name for name in broken if len(broken[name]) <= most]
            if self._is_over() and number < min(ENOUGH, tried) and left:
                return {}
            if self._is_over() or not left:
                break
            if call := self._right_call(case):
                for name in left:
                    is_broken = not self._keeps(call, name) and self._is_computed(call)
                    broken[name] += [case] * is_broken
        return broken

    def _is_over(self) -> bool:
        return time.monotonic() >= self.until

    def _calls(self, cases: Sequence[Case]) -> list[SampledCall]:
        return [*filter(None, map(self._call, cases))]

    def _call(self, case: Case) -> SampledCall | None:
        """The call with the outputs of the target; None if these cannot be compared."""
        outputs = None if self._is_over() else self.outputs_of(case)
        if outputs is None:
            return None
        call = SampledCall(case, outputs, self.target_class)
        return call if all(call.expected) else None

    def _right_call(self, case: Case) -> SampledCall | None:
        """A passing call that the target computes; None if it may have passed by a rejection."""
        if case.id not in self.right:
            contract = case.contract
            if contract.demands == "computes" and not (contract.providers or contract.readings):
                self.right[case.id] = SampledCall(case, (), self.target_class)
            else:
                call = self._call(case)
                is_right = call is not None and call.is_right(call.returned)
                self.right[case.id] = call if is_right else None
        return self.right[case.id]

    def _explains(self, call: SampledCall, fault: str) -> bool:
        outputs = self.kernels.outputs(call, fault)
        return outputs is not None and call.is_explained(outputs)

    def _is_computed(self, call: SampledCall) -> bool:
        """Whether the kernel without a fault computes the call: targets accept some odd ones."""
        return self._keeps(call, "correct")

    def _keeps(self, call: SampledCall, fault: str) -> bool:
        """Whether the call is right with the fault."""
        outputs = self.kernels.outputs(call, fault)
        return outputs is not None and call.is_right(outputs)


def _cases(calls: Iterable[SampledCall]) -> tuple[Case, ...]:
    return tuple(call.case for call in calls)


def _example(cases: Sequence[Case]) -> str:
    """The id of a call of the run, or what another call is."""
    return next((case.id for case in of_run(cases)), cases[0].title)


def _merged(
    parts: Sequence[MatchingFault], failing: Sequence[Case], only: str
) -> MatchingFault | None:
    """What is found in several groups of failures, as one.

    None if many calls that it would break are not told from the failures by an expression.
    """
    broken = {case.id: case for one in parts for case in one.broken}
    if len(broken) <= BROKEN * len(parts):
        only = ""
    elif len(of_run(failing)) < LEAST:
        return None
    elif not only:
        told = shared(failing, [*broken.values()], least_bits=0.0).patterns[:1]
        only = next((one.expression for one in told if _tells(one, failing, broken)), "")
        if not only:
            return None
    together: dict[str, Any] = {
        name: tuple(case for one in parts for case in getattr(one, name))
        for name in ("explained", "others")
    }
    return replace(parts[0], **together, broken=tuple(broken.values()), only=only)


def _tells(pattern: CasePattern, failing: Sequence[Case], passing: Collection[str]) -> bool:
    """Whether an expression selects almost all failing calls, and almost none that passes."""
    missed = len(failing) - len(pattern.selected)
    return missed <= TOLD * len(failing) and len(pattern.passing) <= TOLD * len(passing)


def _spread(cases: Sequence[Case], most: int) -> list[Case]:
    """At most ``most`` simple cases: the simplest, then those that differ most in their features.

    Simple cases have few features and therefore meet few other faults.
    """
    left = sorted(_small(cases), key=simplicity)
    left = left[: min(max(2 * most, len(left) // 4), SIMPLE)]
    chosen = left[:1]
    left = left[1:]
    while left and len(chosen) < most:
        chosen.append(max(left, key=lambda case: min(distance(case, one) for one in chosen)))
        left.remove(chosen[-1])
    return chosen


def _telling(passing: Sequence[Case], failing: Sequence[Case]) -> list[Case]:
    """The passing calls that are tried with a fault, each once, in an order free of sizes."""
    near = sorted(passing, key=lambda case: min(distance(case, one) for one in failing))
    both = chain.from_iterable(zip(near, passing, strict=True))
    order = (*_spread(passing, SPREAD), *both)
    return [*{case.id: case for case in order}.values()][:TRIED]


def _small(cases: Sequence[Case]) -> Iterator[Case]:
    return (case for case in cases if not case.is_graph and effort(case) <= MAX_EFFORT)


def distance(one: Case, other: Case) -> int:
    """The number of features in which two calls differ."""
    others: Mapping[str, str | None] = other.features
    return sum(value != others[name] for name, value in one.features.items())
