"""Reads YAML case files into cases. All errors of a file are reported at once, with positions."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conformance.base.explain import did_you_mean, explain, explained
from conformance.base.garbage import uncollected
from conformance.base.paths import is_case_file, shown
from conformance.base.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.base.yaml_source import InputError, Key, Problem, Source, read_yaml, too_many
from conformance.case.call import Call, GivenCall, GraphCall
from conformance.case.case import TARGET_AXIS, Case, Fields, misfits
from conformance.case.case_file import FORMAT, MAPS, CaseFile, Entry, fields_at
from conformance.case.contracts import contract_by_features
from conformance.case.features import features_of
from conformance.case.kept_cases import keep_cases, kept_cases
from conformance.case.tensors import (
    ShapeError,
    attributes_of,
    steps_of,
)
from conformance.case.title import title_of

#: Cases of a file, and combinations of one matrix.
MAX_CASES: Final = 4_000
#: The names that an axis with a list of values can have.
_FIELDS: Final = (
    *(name for name in Call.model_fields if name not in MAPS),
    *(f"inputs.{name}" for name in INPUT_NAMES),
    *(f"outputs.{name}" for name in OUTPUT_NAMES),
    *(f"attributes.{name}" for name in ATTRIBUTE_BY_NAME),
)
#: What an input's override says of its values.
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
                if not any(part.startswith(".") for part in file.relative_to(path).parts)
                and is_case_file(file)
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


@uncollected()
def load(paths: Sequence[Path]) -> list[Case]:
    """All cases of the files and folders ``paths``, in the files' order.

    Raises :class:`InputError` with every problem of every file.
    """
    cases: list[Case] = []
    problems: list[Problem] = []
    stems: dict[str, Path] = {}
    files = case_files(paths)
    keep_cases(files, read_file)
    for file in files:
        if (other := stems.setdefault(file.stem, file)) != file:
            sentence = f"the theme '{file.stem}' is also used by {shown(other)}; ids would collide"
            problems.append(Problem(file, 0, 0, sentence))
            continue
        try:
            cases += load_file(file)
        except InputError as error:
            problems += error.problems
        if too_many(problems):
            break
    if problems:
        raise InputError(problems)
    return cases


def load_file(file: Path) -> list[Case]:
    """The cases of one file, which may be kept. Raises as :func:`read_file` does."""
    return kept_cases(file, read_file)


def read_file(file: Path) -> list[Case]:
    """The cases of one file. Raises :class:`InputError` with every problem in it."""
    if not _LABEL.fullmatch(file.stem):
        sentence = "the file name is part of every case id; use letters, digits, '_', '.', '+', '-'"
        raise InputError([Problem(file, 0, 0, sentence)])
    source = read_yaml(file)
    if not isinstance(source.data, dict):
        raise InputError([source.problem((), "a case file must be a mapping of fields")])
    problems: list[Problem] = []
    wrong: list[ErrorDetails] = []
    parsed: CaseFile | None
    try:
        parsed = CaseFile.model_validate(source.data)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        parsed = _without(wrong, source.data)
    problems += explained(source, wrong, fields_at)
    cases: list[Case] = []
    if parsed is not None:
        faulty = {detail["loc"][1] for detail in wrong}
        expander = _Expander(source, parsed, faulty)
        with suppress(InputError):  # beyond a limit
            cases = expander.expand()
        problems += expander.problems
    if problems:
        raise InputError(problems)
    return cases


def _without(wrong: list[ErrorDetails], data: dict[str, Any]) -> CaseFile | None:
    """The file without its faulty entries, so that the other entries are checked too.

    None if there are errors outside single entries, because the entries may depend on those parts.
    """
    if not all(detail["loc"][0] == "cases" and len(detail["loc"]) > 1 for detail in wrong):
        return None
    faulty = {detail["loc"][1] for detail in wrong}
    kept = [entry for index, entry in enumerate(data["cases"]) if index not in faulty]
    return CaseFile.model_validate({**data, "cases": kept}) if kept else None


class _FieldSet(NamedTuple):
    """The fields set by the defaults, by an entry or by one value of an axis, and their position.

    ``nested``: each field has its own position below ``path``; otherwise ``path`` is the value.
    """

    label: str
    fields: dict[str, Any]
    path: Key
    nested: bool = True

    def path_of(self, field: str) -> Key:
        return (*self.path, field) if self.nested else self.path


class _Expander:
    """Expands the entries of one file into cases. ``parsed`` lacks the ``faulty`` entries."""

    def __init__(self, source: Source, parsed: CaseFile, faulty: Collection[object]) -> None:
        self.source = source
        self.parsed = parsed
        self.numbers = [i for i in range(len(source.data["cases"])) if i not in faulty]
        self.problems: list[Problem] = []
        self.defaults = _FieldSet("", source.data.get("defaults") or {}, ("defaults",))
        self.cases = 0

    def note(self, path: Key, sentence: str, *, at_key: bool = False) -> None:
        self.add(self.source.problem(path, sentence, at_key=at_key))

    def add(self, problem: Problem) -> None:
        self.problems.append(problem)
        if too_many(self.problems):
            raise InputError(self.problems)

    def refuse(self, path: Key, sentence: str) -> NoReturn:
        """Note ``sentence`` and give the file up, since it goes beyond a limit."""
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
        return _titled(cases, set(titles))

    def entry(self, path: Key, entry: Entry) -> Iterator[Case]:
        raw = self.source.data["cases"][path[-1]]
        before = len(self.problems)
        axes = self.axes(path, entry)
        excludes = self.excludes(path, entry, axes) if axes is not None else None
        if axes is None or excludes is None:
            return
        count = math.prod(map(len, axes.values()))
        self.cases += count
        if self.cases > MAX_CASES:
            self.refuse(path, f"with this entry, the file has more than {MAX_CASES} cases")
        used = [False] * len(excludes)
        expanded: list[tuple[Case, object]] = []
        own = {k: v for k, v in raw.items() if k not in ("name", "title", "matrix", "exclude")}
        for combination in itertools.product(*axes.values()):
            labels = dict(zip(axes, (layer.label for layer in combination), strict=True))
            hit = [i for i, e in enumerate(excludes) if all(labels[a] == v for a, v in e.items())]
            if hit:
                used[hit[0]] = True
                continue
            field_sets = [self.defaults, _FieldSet("", own, path), *combination]
            case = self.concrete(path, entry, labels, field_sets)
            if case is not None:
                expanded.append(case)
        for i, was_used in enumerate(used):
            if not was_used:
                self.note((*path, "exclude", i), "excludes no combination that is left")
        if axes and not expanded and len(self.problems) == before:
            self.note((*path, "matrix"), "no combination is left: all are excluded")
        self.check_axes(path, expanded)
        yield from (case for case, _ in expanded)

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
                if not values:
                    self.note(here, "the axis has no values")
                axes[axis] = [
                    _FieldSet(label, raw[label] or {}, (*here, label)) for label in values
                ]
            elif axis not in _FIELDS:
                self.note(
                    here,
                    f"'{axis}' is not a field of a call{did_you_mean(axis, _FIELDS)};"
                    " an axis of your own maps the label of each value to the fields it sets",
                    at_key=True,
                )
            else:
                if not raw:
                    self.note(here, "the axis has no values")
                axes[axis] = [
                    _FieldSet(_label(value[axis]), value, (*here, i))
                    if isinstance(value, dict) and axis in value
                    else _FieldSet(
                        _label(value),
                        {head: {tail: value}} if tail else {axis: value},
                        (*here, i),
                        nested=False,
                    )
                    for i, value in enumerate(raw)
                ]
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
        combinations = math.prod(map(len, axes.values()))
        if combinations > MAX_CASES:
            number = combinations if combinations < 10**12 else "more than 10^12"
            sentence = f"expands to {number} cases; at most {MAX_CASES} are allowed"
            self.note((*path, "matrix"), sentence, at_key=True)
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

    def concrete(
        self, path: Key, entry: Entry, labels: dict[str, str], field_sets: list[_FieldSet]
    ) -> tuple[Case, object] | None:
        """The case, and a key that equal calls share; None if there are errors, which are noted."""
        merged: dict[str, Any] = {}
        origin: dict[str, Key] = {}
        for field_set in field_sets:
            for field, value in field_set.fields.items():
                origin[field] = field_set.path_of(field)
                if field in MAPS and isinstance(value, dict):
                    for name in value:
                        place = field_set.path_of(field)
                        origin[f"{field}.{name}"] = (*place, name) if field_set.nested else place
                    merged[field] = {**merged.get(field, {}), **value}
                else:
                    merged[field] = value

        def note(field: str, sentence: str) -> None:
            at = origin.get(field) or origin.get(field.partition(".")[0]) or path
            self.note(at, sentence)

        try:
            fields = Fields.model_validate(merged)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                location = [str(part) for part in detail["loc"]]
                where = origin.get(".".join(location[:2])) or origin.get(location[0]) or path
                place = (*where, *detail["loc"][1:])
                self.add(explain(self.source, detail, fields_at, place))
            return None
        own = {name: getattr(fields, name) for name in Call.model_fields}
        call = Call.model_construct(merged.keys() & own.keys(), **own)
        wrong: list[tuple[str, str]] = []
        if call.graph is not None:
            call, wrong = self.with_graph(call, merged, fields)
        demands = fields.contract.demands if fields.contract else "computes"
        wrong = wrong or list(misfits(call, demands, fields.relation))
        if (
            fields.contract
            and fields.contract.readings
            and (fields.relation or demands == "rejects")
        ):
            wrong.append(("contract", "readings need a call with values and without a relation"))
        if call.values_from is not None:
            wrong += _beside_given(merged)
        for field, sentence in wrong:
            note(field, sentence)
        if wrong:
            return None
        try:
            steps = steps_of(call)
        except ShapeError as error:
            note(error.field, str(error))
            return None
        if call.values_from is not None:
            from conformance.case.given import GivenError, given_call  # imports NumPy

            try:
                call = given_call(call, steps[0], self.source.file.parent)
            except GivenError as error:
                note("values_from", str(error))
                return None
        contract = fields.contract or contract_by_features(call, steps)
        if contract is None:
            note("contract", "none follows from the features of this call; write one")
            return None
        suffix = "[" + ",".join(f"{axis}={label}" for axis, label in labels.items()) + "]"
        case_id = f"{self.source.file.stem}/{entry.name}{suffix if labels else ''}"
        case = Case(
            id=case_id,
            theme=self.source.file.stem,
            name=entry.name,
            title=entry.title or "",
            axes=labels,
            file=self.source.file,
            line=self.source.values[path][0],
            question=self.parsed.question.strip(),
            call=call,
            steps=steps,
            contract=contract,
            why=fields.why.strip(),
            tags=tuple(dict.fromkeys((*self.parsed.tags, *fields.tags))),
            links=tuple(dict.fromkeys((*self.parsed.links, *fields.links))),
            time_limit_seconds=fields.time_limit_seconds,
            relation=fields.relation,
            insensitive_to=fields.insensitive_to,
        )
        return case, (
            tuple((t.state, t.dtype, t.shape) for s in steps for t in (*s.inputs, *s.outputs)),
            tuple(attributes_of(call).items()),
            call.content if isinstance(call, GraphCall) else None,
            call.seed,
            call.digest if isinstance(call, GivenCall) else None,
            call.shared_buffer,
            fields.relation,
        )

    def with_graph(
        self, call: Call, merged: dict[str, Any], fields: Fields
    ) -> tuple[Call, list[tuple[str, str]]]:
        """The call with the content of its graph, and what is wrong with it or beside it."""
        from conformance.case.graph import FIELDS, GraphError, read_graph  # imports onnx

        wrong = [
            (name, f"{name} cannot stand beside graph; allowed are {', '.join(FIELDS[1:])}")
            for name in merged
            if name in Call.model_fields and name not in FIELDS
        ]
        if fields.relation:
            wrong.append(("relation", "a graph has no variant"))
        if fields.contract is not None and fields.contract.readings:
            wrong.append(("contract", "readings are of a single node, not of a graph"))
        try:
            assert call.graph is not None
            return read_graph(call, self.source.file.parent / call.graph), wrong
        except GraphError as error:
            return call, [*wrong, ("graph", f"{call.graph}: {error}")]

    def check_axes(self, path: Key, expanded: list[tuple[Case, object]]) -> None:
        """Notes each axis that does not change the call, so that two cases would be the same."""
        alike: dict[object, list[Case]] = {}
        for case, call in expanded:
            alike.setdefault(call, []).append(case)
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


def _titled(cases: list[Case], taken: set[str]) -> list[Case]:
    """The cases, each with a title: if the entry has none, what its cases share, with a number if
    such a title is already ``taken``."""
    titled: list[Case] = []
    for _, group in itertools.groupby(cases, key=lambda case: case.name):
        entry = list(group)
        if not entry[0].title:
            first, *others = (features_of(case.call, case.steps) for case in entry)
            shared = {
                name: value
                for name, value in first.items()
                if all(other[name] == value for other in others)
            }
            title = plain = title_of(shared, [case.call for case in entry])
            number = 1
            while title in taken:
                number += 1
                title = f"{plain} ({number})"
            taken.add(title)
            entry = [replace(case, title=title) for case in entry]
        titled += entry
    return titled


def _beside_given(merged: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields that contradict values from a file, each with a sentence."""
    from conformance.case.given import EXCLUDED  # imports NumPy

    for field, why in EXCLUDED.items():
        if merged.get(field):
            yield field, f"{field} cannot stand beside values_from: {why}"
    for name, override in merged.get("inputs", {}).items():
        if isinstance(override, dict) and not override.keys().isdisjoint(_VALUES):
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
