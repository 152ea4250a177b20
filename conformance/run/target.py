"""A target of a run: its cases and expectations, and the runner's description of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from conformance.base.array_types import NUMPY
from conformance.base.findings import SOFTWARE_ADAPTERS
from conformance.base.target_names import as_name, is_by_path, name_in_results
from conformance.base.yaml_source import InputError, Problem
from conformance.case.case import Case
from conformance.case.relations import CANNOT_SHARE
from conformance.expectations.match import Expectation, check_stale
from conformance.expectations.read import load_expectations, load_pinned
from conformance.harness.protocol import DescribedAnswer, OperatorSchema
from conformance.harness.runner import RunnerFailed
from conformance.operator.signature import ATTRIBUTES, INPUTS, OUTPUTS, TYPES
from conformance.results.records import TargetDescription, TargetRecord, UncalledParts
from conformance.targets.catalogue import ADAPTERS
from conformance.targets.registry import Target, name_fault


@dataclass(frozen=True)
class Plan:
    """The cases to run on one target, and its expectations.

    ``pinned`` are the lines of the user's files, for any targets; they come before the others.
    ``measured``: it is measured whether the cases can show a fault.
    """

    target: Target
    cases: tuple[Case, ...]
    expectations: tuple[Expectation, ...]
    pinned: tuple[Expectation, ...] = ()
    measured: bool = True

    def lines_for(self, ready: DescribedTarget) -> tuple[Expectation, ...]:
        """The expectations for the target as its runner describes it, in their order."""
        if ready.described is None:
            return ()
        mine = (line for line in self.pinned if line.target in (self.target.ep, ready.base))
        return ready.lines_among((*mine, *self.expectations))


def target_plans(
    cases: Sequence[Case],
    targets: Sequence[Target],
    *,
    selected: Callable[[Case, Target], bool] = lambda case, target: True,
    pinned: Sequence[Path] = (),
) -> list[Plan]:
    """A plan for each target: those of the loaded ``cases`` that are ``selected`` for it.

    ``pinned`` are the user's expectations files. Raises
    :class:`conformance.base.yaml_source.InputError` for wrong expectations, for stale ones of the
    user, and for a file for a target that none of ``targets`` can be.
    """
    own = load_pinned(pinned)
    _check_targets(own, targets)
    # Once for all releases of a target, which have the same files.
    named = dict.fromkeys(target.expectations for target in targets)
    lines = {files: tuple(load_expectations(files)) for files in named}
    check_stale(own, cases, whole=False, later=[line for some in lines.values() for line in some])
    return [
        Plan(
            target,
            tuple(case for case in cases if selected(case, target)),
            lines[target.expectations],
            tuple(own),
        )
        for target in targets
    ]


def _name_of(runtime: str) -> str:
    """The name of a target whose runner gives none: that of its runtime, in the form of names.

    ``exec-tract`` if a target of this suite has the name.
    """
    name = as_name(runtime)
    return f"exec-{name}" if not name[:1].isalpha() or name_fault(name) else name


def _check_targets(lines: Sequence[Expectation], targets: Sequence[Target]) -> None:
    """Raise :class:`InputError` for lines of a user whose target none of ``targets`` can be."""
    if any(target.base is None for target in targets):
        return  # only its runner knows its name
    names = {name for target in targets for name in (target.ep, target.base)}
    known = ", ".join(target.base or target.ep for target in targets)
    problems = [
        Problem(
            line.file, 0, 0, f"the file is for the target '{line.target}', and the run has {known}"
        )
        for line in lines
        if line.target not in names
    ]
    if problems:
        raise InputError(problems)


def _uncalled(schema: OperatorSchema | None) -> UncalledParts | None:
    """The parts of a runtime's schema that the signature lacks; None if there are none."""
    if schema is None:
        return None
    kinds = {name: frozenset([kind]) for name, kind in schema.attributes.items()}
    parts: dict[str, tuple[str, ...]] = {}
    types: dict[str, tuple[str, ...]] = {}
    for part, declared, known in (
        ("inputs", schema.inputs, {one.name: TYPES[one.type] for one in INPUTS}),
        ("outputs", schema.outputs, {one.name: TYPES[one.type] for one in OUTPUTS}),
        ("attributes", kinds, {one.name: (one.kind,) for one in ATTRIBUTES}),
    ):
        parts[part] = tuple(name for name in declared if name not in known)
        for name in known:
            if more := declared.get(name, frozenset()) - {*known[name]}:
                types[name] = tuple(sorted(more))
    if not any(parts.values()) and not types:
        return None
    return UncalledParts(declared_by=schema.declared_by, types=types, **parts)


@dataclass(frozen=True)
class DescribedTarget:
    """A target as its runner describes it.

    ``name`` is the name in results: ``cpu@1.31.1``, or ``webgpu@1.30.0+lavapipe`` if results may
    differ by adapter. If several targets describe themselves alike, the second is ``cpu@1.31.1#2``,
    by its ``number``. ``reported`` is the runner's own description, if ``described`` has the
    published version instead of the runner's. ``broken`` is why the runner did not start.
    """

    target: Target
    described: DescribedAnswer | None
    unavailable: str | None
    fix: str | None
    broken: RunnerFailed | None = None
    number: int = 1
    reported: DescribedAnswer | None = None

    @cached_property
    def name(self) -> str:
        """The target's name with its version and its adapter, as far as they are known."""
        if self.described is None:
            return self.target.label
        return name_in_results(self.base, self.version, self.adapter, self.number)

    @cached_property
    def base(self) -> str:
        """The first part of its name in results, and its name in expectations files."""
        if self.target.base is not None or self.described is None:
            return self.target.base or self.target.ep
        return self.described.name or _name_of(self.described.runtime)

    @property
    def version(self) -> str:
        """The version of its runtime; "" if it could not be started."""
        return self.described.version if self.described else ""

    @property
    def adapter(self) -> str | None:
        """The adapter, if results may differ by it."""
        return self.described.adapter if self.described else None

    @property
    def on_software(self) -> bool:
        """Whether it renders in software, where shaders can behave as they do on no GPU."""
        return self.adapter in SOFTWARE_ADAPTERS

    def lines_among(self, lines: Iterable[Expectation]) -> tuple[Expectation, ...]:
        """The expectations that hold for its version and adapter."""
        return tuple(line for line in lines if line.known.holds_for(self.version, self.adapter))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The command line options that select it, its adapter included if it can be named."""
        known = self.target.arguments
        if is_by_path(self.target.ep) or self.adapter not in ADAPTERS or "--adapter" in known:
            return known
        return (*known, "--adapter", self.adapter)

    @property
    def execution_provider(self) -> str | None:
        """The execution provider on which nodes must run; None if the runtime has none, or if it
        gets standard operators, which may run anywhere."""
        if self.target.in_standard_operators:
            return None
        if self.target.entry.execution_provider is not None:
            return self.target.entry.execution_provider
        return self.described.execution_provider if self.described else None

    def record(self) -> TargetRecord:
        """The record for the header of the results file."""
        describe = None
        if self.described is not None:
            values = self.described.model_dump(exclude={"id", "outcome", "operator", "lacks"})
            describe = TargetDescription(**values, uncalled=_uncalled(self.described.operator))
        return TargetRecord(
            name=self.name,
            ep=self.target.typed,
            describe=describe,
            unavailable=self.unavailable,
            fix=self.fix,
        )

    def cannot_take(self, case: Case) -> str | None:
        """Why the target cannot run the case, by the runner's description; None if it can."""
        if self.described is None:
            return self.unavailable or "the target is not available"
        missing = self._missing(case)
        if missing:
            return self.adapter_lacks(case) or f"{self.name} cannot take {', '.join(missing)}"
        shares = case.call.shared_buffer or case.relation == "shared_buffer"
        refuses = any(step.refused for step in case.steps)
        if self.target.in_standard_operators:
            if shares or case.steps[0].buffers:
                return CANNOT_SHARE
            if refuses or case.contract.demands == "rejects":
                return "standard operators do not know that a call must be refused"
        if shares and "shared_buffer" not in self.described.features:
            return f"{self.name} cannot make past and present share a buffer"
        if "shared_buffer" not in self.described.features and case.steps[0].buffers:
            return f"{self.name} cannot bind an output to memory of the program"
        cuts = any(step.keep is not None for step in case.steps)
        if cuts and "keep" not in self.described.features:
            return f"{self.name} cannot cut a growing cache"
        if refuses and "may_be_rejected" not in self.described.features:
            return f"{self.name} cannot go on after a refused call"
        return None

    def adapter_lacks(self, case: Case) -> str | None:
        """That the adapter has not the dtype of the case, with the command that mends it, or None.

        The runtime has the dtype.
        """
        lacks = self.described.lacks if self.described else {}
        for name in filter(lacks.__contains__, self._missing(case)):
            return f"this adapter has no {name}" + (f"; fix: {lacks[name]}" if lacks[name] else "")
        return None

    def _missing(self, case: Case) -> list[str]:
        """The dtypes of the case that the target cannot take."""
        tensors = (*case.steps[0].inputs, *case.steps[0].outputs)
        wanted = {tensor.dtype for tensor in tensors if tensor.connected}
        known = self.described.dtypes if self.described else ()
        return sorted(wanted.difference(known), key=list(NUMPY).index)
