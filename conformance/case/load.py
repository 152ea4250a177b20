"""Reads YAML case files into cases. All errors of a file are reported at once, with positions."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conformance.base.explain import did_you_mean, explain, explained
from conformance.base.paths import PROFILES, is_case_file, shown
from conformance.base.yaml_source import InputError, Key, Problem, Source, read_yaml, too_many
from conformance.case.case import ON_PURPOSE, TARGET_AXIS, Case, Description, Fields, misfits
from conformance.case.case_file import FORMAT, MAPS, Entry, ThemeFile, fields_at, synonyms
from conformance.case.relations import RELATIONS
from conformance.operator.call import (
    CALL_FIELDS,
    GRAPH_FIELDS,
    NOT_BESIDE_VALUES,
    Call,
    CallError,
    GraphCall,
    InputOverride,
)
from conformance.operator.rules import why_excluded
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.operator.tensors import attributes_of

#: The most cases of a file, excluded combinations included.
MAX_CASES: Final = 4_000
#: The names that an axis with a list of values can have.
_FIELDS: Final = (
    *(name for name in CALL_FIELDS if name not in MAPS),
    *(f"inputs.{name}" for name in INPUT_NAMES),
    *(f"outputs.{name}" for name in OUTPUT_NAMES),
    *(f"attributes.{name}" for name in ATTRIBUTE_BY_NAME),
)
#: The fields of an input's override that set its values.
_VALUES: Final = ("values", "data", "elements")
_LABEL = re.compile(r"[A-Za-z0-9_.+\-]+")


def case_files(paths: Sequence[Path]) -> list[Path]:
    """The case files among ``paths``: a file counts as one, a folder is searched for them.

    Each file is listed once, however it is spelled. Hidden folders (``.venv``) are skipped. Raises
    :class:`InputError` for a path that does not exist and for a folder without case files.
    """
    found: list[Path] = []
    problems: list[Problem] = []
    for path in paths:
        if os.path.isdir(path):
            files = sorted(
                file
                for ending in ("*.yaml", "*.yml")
                for file in path.rglob(ending)
                if not any(map(_is_left_out, file.relative_to(path).parts)) and is_case_file(file)
            )
            if not files:
                problems.append(
                    Problem(path, 0, 0, f"no case file (format: {FORMAT}) in this folder")
                )
            found += files
        elif os.path.lexists(path):  # the reader says what is wrong with it
            found.append(path)
        else:
            problems.append(Problem(path, 0, 0, "no such file or folder"))
    if problems:
        raise InputError(problems)
    unique: dict[Path, Path] = {}
    for file in found:
        unique.setdefault(file.parent.resolve() / file.name, file)
    return list(unique.values())


def _is_left_out(part: str) -> bool:
    """Whether to skip a folder: a hidden one, and that of the profiles."""
    return part.startswith(".") or part == PROFILES


def load(paths: Sequence[Path], *, checked: bool = True) -> list[Case]:
    """All cases of the files and folders ``paths``, in the files' order.

    ``checked``: derive the tensors of each call, which finds impossible calls. Otherwise these are
    found when the tensors are first used: deriving them takes two thirds of the time. Raises
    :class:`InputError` with every problem of every file.
    """
    cases: list[Case] = []
    problems: list[Problem] = []
    stems: dict[str, Path] = {}
    for file in case_files(paths):
        if (other := stems.setdefault(file.stem, file)) != file:
            sentence = f"the theme '{file.stem}' is also used by {shown(other)}; ids would collide"
            problems.append(Problem(file, 0, 0, sentence))
            continue
        try:
            cases += load_file(file, checked=checked)
        except InputError as error:
            problems += error.problems
        if too_many(problems):
            break
    if problems:
        raise InputError(problems)
    return cases


def load_file(file: Path, *, checked: bool = True) -> list[Case]:
    """The cases of one file; otherwise like :func:`load`."""
    if not _LABEL.fullmatch(file.stem):
        sentence = "the file name is part of every case id; use letters, digits, '_', '.', '+', '-'"
        raise InputError([Problem(file, 0, 0, sentence)])
    source = read_yaml(file)
    if not isinstance(source.data, dict):
        raise InputError([source.problem((), "a case file must be a mapping of fields")])
    problems: list[Problem] = []
    wrong: list[ErrorDetails] = []
    parsed: ThemeFile | None
    try:
        parsed = ThemeFile.model_validate(source.data)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        parsed = _without(wrong, source.data)
    problems += explained(source, wrong, fields_at, synonyms() if wrong else None)
    cases: list[Case] = []
    if parsed is not None:
        faulty = {detail["loc"][1] for detail in wrong}
        expander = _Expander(source, parsed, faulty, checked)
        try:
            cases = expander.expand()
        except InputError as error:  # beyond a limit, or a case that cannot be prepared
            problems += (each for each in error.problems if each not in expander.problems)
        problems += expander.problems
    if problems:
        raise InputError(problems)
    return cases


def _without(wrong: list[ErrorDetails], data: dict[str, Any]) -> ThemeFile | None:
    """The file without its faulty entries, so that the other entries are checked too.

    None if there are errors outside single entries, because the entries may depend on those parts.
    """
    if not all(detail["loc"][0] == "cases" and len(detail["loc"]) > 1 for detail in wrong):
        return None
    faulty = {detail["loc"][1] for detail in wrong}
    kept = [entry for index, entry in enumerate(data["cases"]) if index not in faulty]
    return ThemeFile.model_validate({**data, "cases": kept}) if kept else None


class _FieldSet(NamedTuple):
    """The fields set by the defaults, by an entry or by one value of an axis, and their position.

    ``nested``: each field has a separate position below ``path``; otherwise ``path`` is the value.
    """

    label: str
    fields: dict[str, Any]
    path: Key
    nested: bool = True

    def path_of(self, field: str, *names: str) -> Key:
        return (*self.path, field, *names) if self.nested else self.path


def _set_fields(fields: Fields) -> dict[str, Any]:
    """The fields that are set, without those that only an entry can have."""
    names = fields.model_fields_set & Fields.model_fields.keys()
    return {name: getattr(fields, name) for name in names}


class _Expander:
    """Expands the entries of one file into cases. ``parsed`` lacks the ``faulty`` entries."""

    def __init__(
        self, source: Source, parsed: ThemeFile, faulty: Collection[object], checked: bool
    ) -> None:
        self.source = source
        self.parsed = parsed
        self.checked = checked
        self.numbers = [i for i in range(len(source.data["cases"])) if i not in faulty]
        self.problems: list[Problem] = []
        self.defaults = _FieldSet("", _set_fields(parsed.defaults), ("defaults",))
        self.cases = 0

    def note(self, path: Key, sentence: str, *, at_key: bool = False) -> None:
        self.add(self.source.problem(path, sentence, at_key=at_key))

    def add(self, problem: Problem) -> None:
        self.problems.append(problem)
        if too_many(self.problems):
            raise InputError(self.problems)

    def refuse(self, path: Key, sentence: str) -> NoReturn:
        """Report ``sentence`` and stop reading the file, since it exceeds a limit."""
        self.note(path, sentence)
        raise InputError(self.problems)

    def expand(self) -> list[Case]:
        cases: list[Case] = []
        names: dict[str, int] = {}
        titles: dict[str, int] = {}
        for index, entry in zip(self.numbers, self.parsed.cases, strict=True):
            path: Key = ("cases", index)
            for kind, text, taken in (("name", entry.name, names), ("title", entry.title, titles)):
                if text is None:
                    continue
                first = taken.setdefault(text, index)
                if first != index:
                    line = self.source.problem(("cases", first, kind), "").line
                    self.note((*path, kind), f"the {kind} '{text}' is already used on line {line}")
            cases += self.entry(path, entry)
        return cases

    def entry(self, path: Key, entry: Entry) -> Iterator[Case]:
        before = len(self.problems)
        axes = self.axes(path, entry)
        excludes = self.excludes(path, entry, axes) if axes is not None else None
        if axes is None or excludes is None:
            return
        self.cases += math.prod(map(len, axes.values()))
        if self.cases > MAX_CASES:
            self.refuse(path, f"with this entry, the file has more than {MAX_CASES} cases")
        used = [False] * len(excludes)
        expanded: list[Case] = []
        own = _FieldSet("", _set_fields(entry), path)
        for combination in itertools.product(*axes.values()):
            labels = dict(zip(axes, (layer.label for layer in combination), strict=True))
            hit = [i for i, e in enumerate(excludes) if all(labels[a] == v for a, v in e.items())]
            if hit:
                used[hit[0]] = True
                continue
            case = self.concrete(path, entry, labels, [self.defaults, own, *combination])
            if case is not None:
                expanded.append(case)
        for i, was_used in enumerate(used):
            if not was_used:
                self.note((*path, "exclude", i), "excludes no combination that is left")
        if axes and not expanded and len(self.problems) == before:
            self.note((*path, "matrix"), "no combination is left: all are excluded")
        if self.checked:
            self.check_axes(path, expanded)
        yield from expanded

    def axes(self, path: Key, entry: Entry) -> dict[str, list[_FieldSet]] | None:
        """The values of each axis, or None if the matrix has errors."""
        before = len(self.problems)
        axes: dict[str, list[_FieldSet]] = {}
        for axis, values in (entry.matrix or {}).items():
            here: Key = (*path, "matrix", axis)
            raw = self.source.data["cases"][path[-1]]["matrix"][axis]
            head, _, tail = axis.partition(".")
            if axis == TARGET_AXIS:
                self.note(here, f"'{axis}' names the target in the ids of tests", at_key=True)
            elif isinstance(values, dict):
                if axis in _FIELDS:
                    self.note(here, f"'{axis}' is a field: write its values as a list", at_key=True)
                elif not _LABEL.fullmatch(axis):
                    self.note(
                        here, f"'{axis}' contains characters not allowed in an id", at_key=True
                    )
                axes[axis] = [
                    _FieldSet(label, _set_fields(fields), (*here, label))
                    for label, fields in values.items()
                ]
            elif axis not in _FIELDS:
                self.note(
                    here,
                    f"'{axis}' is not a field of a call{did_you_mean(axis, _FIELDS, synonyms())};"
                    " an axis of your own maps the label of each value to the fields it sets",
                    at_key=True,
                )
            else:
                axes[axis] = [
                    self.listed(_label(value[axis]), value, (*here, i), nested=True)
                    if isinstance(value, dict) and axis in value
                    else self.listed(
                        _label(value), {head: {tail: value}} if tail else {axis: value}, (*here, i)
                    )
                    for i, value in enumerate(raw)
                ]
            if axes.get(axis) == []:
                self.note(here, "the axis has no values")
            labels: set[str] = set()
            for label, _, at, _ in axes.get(axis, []):
                if label in labels:
                    self.note(at, f"the value {label} is twice in this axis; ids would collide")
                labels.add(label)
                if not _LABEL.fullmatch(label):
                    self.note(
                        at,
                        f"'{label}' contains characters not allowed in an id: give the axis a name"
                        " of your own and map short labels to its values",
                    )
        return axes if len(self.problems) == before else None

    def excludes(
        self, path: Key, entry: Entry, axes: dict[str, list[_FieldSet]]
    ) -> list[dict[str, str]] | None:
        """The combinations to leave out, as axes and labels; None if they have errors."""
        before = len(self.problems)
        labels = {
            axis: {field_set.label: None for field_set in sets} for axis, sets in axes.items()
        }
        excludes: list[dict[str, str]] = []
        for i, exclude in enumerate(entry.exclude):
            here: Key = (*path, "exclude", i)
            wanted: dict[str, str] = {}
            if not exclude:
                self.note(here, "must name at least one axis")
            for axis, value in exclude.items():
                wanted[axis] = _label(value)
                if axis not in axes:
                    self.note(
                        (*here, axis), f"no axis '{axis}' in this matrix{did_you_mean(axis, axes)}"
                    )
                elif wanted[axis] not in labels[axis]:
                    known = ", ".join(labels[axis])
                    self.note((*here, axis), f"'{axis}' has no value {value}: {known}")
            excludes.append(wanted)
        return excludes if len(self.problems) == before else None

    def listed(
        self, label: str, fields: dict[str, Any], path: Key, *, nested: bool = False
    ) -> _FieldSet:
        """One value of an axis with a list; without its fields if they have errors, which are
        reported.
        """
        try:
            is_legal = _LABEL.fullmatch(label)  # else the label is what is wrong
            made = _set_fields(Fields.model_validate(fields)) if is_legal else {}
        except ValidationError as error:
            made = {}
            for detail in error.errors(include_url=False):
                place = (*path, *detail["loc"][0 if nested else 1 :])
                self.add(explain(self.source, detail, fields_at, place, synonyms()))
        return _FieldSet(label, made, path, nested)

    def concrete(
        self, path: Key, entry: Entry, labels: dict[str, str], field_sets: list[_FieldSet]
    ) -> Case | None:
        """The case; None if there are errors, which are reported."""
        merged: dict[str, Any] = {}
        for field_set in field_sets:
            for field, value in field_set.fields.items():
                if field in MAPS:
                    value = {**merged.get(field, {}), **value}
                merged[field] = value
        if merged.get("kv_cache_bit_width", 8) is None:
            merged["attributes"] = {"kv_cache_bit_width": None, **merged.get("attributes", {})}
        parsed, theme = self.parsed, self.source.file.stem
        suffix = "[" + ",".join(f"{axis}={label}" for axis, label in labels.items()) + "]"
        about = {name: merged.pop(name, default) for name, default in _DESCRIPTION.items()}
        case = Case(
            id=f"{theme}/{entry.name}{suffix if labels else ''}",
            theme=theme,
            name=entry.name,
            axes=labels,
            file=self.source.file,
            line=self.source.values[path][0],
            question=parsed.question.strip(),
            written_title=entry.title,
            written_call=replace(_PLAIN_CALL, **merged),
            written_contract=about["contract"],
            why=about["why"].strip(),
            tags=tuple(dict.fromkeys((*parsed.tags, *about["tags"]))),
            links=tuple(dict.fromkeys((*parsed.links, *about["links"]))),
            time_limit_seconds=about["time_limit_seconds"],
            relation=about["relation"],
            insensitive_to=about["insensitive_to"],
        )
        wrong = _problems_of(case, merged) if self.checked else []
        for field, sentence in wrong:
            self.note(_origin(field, field_sets) or path, sentence)
        return None if wrong else case

    def check_axes(self, path: Key, expanded: list[Case]) -> None:
        """Report each axis that does not change the call, so that two cases would be the same."""
        alike: dict[object, list[Case]] = {}
        for case in expanded:
            alike.setdefault(_what_is_run(case), []).append(case)
        reported: set[str] = set()
        for cases in alike.values():
            seen: dict[str, Case] = {}
            for case in cases if len(cases) > 1 else ():
                other = seen.setdefault(repr(case.steps), case)
                if other is case:
                    continue
                axis = next(a for a in case.axes if case.axes[a] != other.axes[a])
                if axis not in reported:
                    reported.add(axis)
                    sentence = (
                        f"the axis '{axis}' has no effect on the call: {other.label} and"
                        f" {case.label} are the same"
                    )
                    self.note((*path, "matrix", axis), sentence, at_key=True)


#: A call with default values, and the values of the other fields of an entry that are not set.
_PLAIN_CALL: Final = Call()
_DESCRIPTION: Final = dict(Description())


def _origin(field: str, field_sets: Sequence[_FieldSet]) -> Key | None:
    """The position of a field such as ``scale`` or ``inputs.key`` where it is set last."""
    name, _, inner = field.partition(".")
    setting = [each for each in reversed(field_sets) if name in each.fields]
    with_inner = [each for each in setting if inner and inner in each.fields[name]]
    places = [
        *(each.path_of(name, inner) for each in with_inner),
        *(each.path_of(name) for each in setting),
    ]
    return places[0] if places else None


def _problems_of(case: Case, fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The contradictions of a case whose entry sets the ``fields`` of its call: field, sentence."""
    written, contract = case.written_call, case.written_contract
    demands = contract.demands if contract else "computes"
    wrong: list[tuple[str, str]] = []
    if written.graph is not None:
        wrong += (
            (name, f"{name} cannot stand beside graph; allowed are {', '.join(GRAPH_FIELDS[1:])}")
            for name in fields
            if name not in GRAPH_FIELDS
        )
        if case.relation and not RELATIONS[case.relation].of_graphs:
            wrong.append(("relation", f"{case.relation}: a graph has no such variant"))
        if contract and contract.readings:
            wrong.append(("contract", "readings are of a single node, not of a graph"))
    elif contract and contract.readings and (case.relation or demands == "rejects"):
        wrong.append(("contract", "readings need a call with values and without a relation"))
    if written.values_from is not None:
        wrong += _beside_values(case, fields)
    try:
        wrong = wrong or [*misfits(case.call, demands, case.relation)]
        if not wrong:
            _ = case.steps
            features = case.features_of_calls if case.contract.demands == "computes" else ()
            for names, reason in filter(None, map(why_excluded, features)):
                field = next((name for name in names if name in fields), names[-1])
                wrong.append((field, f"{reason[:1].lower()}{reason[1:-1]}{ON_PURPOSE}"))
    except InputError as error:
        cause = error.__cause__
        if not isinstance(cause, CallError):
            raise
        wrong.append((cause.field, str(cause)))
    return wrong


def _what_is_run(case: Case) -> object:
    """A key that two cases share only if they run the same call, except for the tensors' values."""
    call = case.call
    tensors = (t for s in case.steps for t in (*s.inputs, *s.buffers, *s.outputs))
    return (
        tuple((t.state, t.dtype, t.shape) for t in tensors),
        tuple(attributes_of(call).items()),
        call.content if isinstance(call, GraphCall) else None,
        call.seed,
        call.values_from,
        call.shared_buffer,
        case.relation,
    )


def _beside_values(case: Case, fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields that contradict the values in a file, each with a sentence."""
    for field, why in NOT_BESIDE_VALUES.items():
        if case.relation if field == "relation" else fields.get(field):
            yield field, f"{field} cannot stand beside values_from: {why}"
    for name, override in case.written_call.inputs.items():
        if isinstance(override, InputOverride) and override.model_fields_set & {*_VALUES}:
            yield f"inputs.{name}", f"{name} has its values from the file that values_from names"


def _label(value: object) -> str:
    """The label of an axis's value in a case id."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "+".join(map(_label, value))
    return str(value)
