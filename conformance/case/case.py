"""A case: one concrete call of the operator, and its contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from conformance.base.explain import reason_of
from conformance.base.yaml_source import InputError, Problem
from conformance.case.contract import Contract, contract_of_calls
from conformance.case.relations import RELATIONS, RelationName
from conformance.case.steps import steps_of
from conformance.operator.call import Call, CallError, CallFields, Model
from conformance.operator.features import EFFECTS, PARTS, features_of, words
from conformance.operator.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.operator.tensors import Step, attributes_of

#: pytest's own marks. Tags become marks, so a tag must not be one of them.
PYTEST_MARKS: Final = ("filterwarnings", "parametrize", "skip", "skipif", "usefixtures", "xfail")

#: The name that the target has among the axes of a test. No axis of a case can have it.
TARGET_AXIS: Final = "ep"


def _no_mark(tag: str) -> str:
    if tag in PYTEST_MARKS:
        raise ValueError("is one of pytest's own marks; choose another word")
    return tag


Tag = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$"), AfterValidator(_no_mark)]


#: Largest length of a title: it has to fit into a row of a report.
MAX_TITLE: Final = 80
#: A title begins with a capital letter, a number, or the name of an input, output or attribute.
_NAMES: Final = "|".join((*INPUT_NAMES, *OUTPUT_NAMES, *ATTRIBUTE_BY_NAME))
_TITLE_BEGINS: Final = rf"^([A-Z0-9]|({_NAMES})\b)"


def _as_title(text: str) -> str:
    if len(text) > MAX_TITLE:
        raise ValueError(f"has {len(text)} characters; at most {MAX_TITLE} are allowed")
    if not text.isprintable():
        raise ValueError("must be one line of text")
    if not re.match(_TITLE_BEGINS, text):
        raise ValueError(
            "must begin with a capital letter, a number, or an input, output or attribute"
        )
    if text.endswith((".", " ")):
        raise ValueError("must not end with a full stop or a space")
    return text


Title = Annotated[
    str,
    AfterValidator(_as_title),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": MAX_TITLE,
            "pattern": _TITLE_BEGINS,
            "not": {"pattern": "[. ]$"},
        }
    ),
]


#: The name of an effect (:mod:`conformance.bundle.effects`), one of `EFFECTS`.
if TYPE_CHECKING:
    EffectName = str
else:
    EffectName = Literal[EFFECTS]


class Description(Model):
    """The fields of a case that do not describe its call."""

    why: str = ""
    """What this case shows that no other case does."""
    insensitive_to: tuple[EffectName, ...] = ()
    """Parts of the call that must not change the output, because that is the point of the case. Any
    other active part must have an effect above its threshold, or the case is not run."""
    tags: tuple[Tag, ...] = ()
    links: tuple[str, ...] = ()
    contract: Contract | None = None
    relation: RelationName | None = None
    """The target also computes a variant of the call, and the two results must agree."""
    time_limit_seconds: Annotated[float, Strict(), Field(gt=0, le=3600)] = 30.0


class Fields(CallFields, Description):
    """The fields allowed in defaults, in an entry and in a value of a compound axis."""


@dataclass(frozen=True)
class Case:
    """One concrete case.

    ``axes`` maps each axis of the entry's matrix to the label of this case's value. ``line`` is the
    first line of the entry in ``file``. The ``written_`` fields have the content of the file;
    values that follow from them are derived when they are first used. Raises InputError if the case
    is impossible.
    """

    id: str
    theme: str
    name: str
    axes: dict[str, str]
    file: Path
    line: int
    question: str
    written_title: str | None
    written_call: Call
    written_contract: Contract | None
    why: str
    tags: tuple[str, ...]
    links: tuple[str, ...]
    time_limit_seconds: float
    relation: RelationName | None = None
    insensitive_to: tuple[EffectName, ...] = ()

    @cached_property
    def call(self) -> Call:
        """The call, with the content of its graph and the digest of its file of values."""
        written, folder = self.written_call, self.file.parent
        with self._place_of_errors():
            if written.graph is not None:
                from conformance.case.graph import read_graph  # imports onnx

                return read_graph(written, folder / written.graph)
            if written.values_from is not None:
                from conformance.case.given import given_call  # imports NumPy

                return given_call(written, steps_of(written)[0], folder)
        return written

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The tensors and lengths of each execution of the model."""
        with self._place_of_errors():
            return steps_of(self.call)

    @cached_property
    def contract(self) -> Contract:
        """The demands on a runtime: those in the file, or those that follow from the features."""
        with self._place_of_errors():
            contract = self.written_contract
            if contract is None and not self.is_graph and not self.is_undecided:
                contract = contract_of_calls(self.features_of_calls)
            if contract is None:
                sentence = "no contract follows from the features of this call; write one"
                raise CallError("contract", sentence)
        return contract

    @cached_property
    def features(self) -> dict[str, str | None]:
        """The value of each feature."""
        return features_of(self.call, self.steps)

    @cached_property
    def features_of_calls(self) -> tuple[dict[str, str | None], ...]:
        """The features of each call of the session or of a loop alone, and last of the case.

        Calls that must be refused are left out.
        """
        *earlier, own = self.call.calls
        written = zip(earlier, self.call.earlier_calls, strict=True)
        legal = [each for each, call in written if not call.refused]
        alone = [(each, step) for each in legal for step in steps_of(each)]
        alone += [
            (replace(own, loop=None, cache=own.cache_kind), step)
            for step in self.steps[len(earlier) :]
            if own.loop
        ]
        return (*(features_of(each, (step,)) for each, step in alone), self.features)

    @cached_property
    def title(self) -> str:
        """The call in words: the title in the file, or else its features.

        A title in the file is the same for all cases of an entry. Of the features, those of the
        axes are left out, and as many as fit are listed.
        """
        if self.written_title:
            return self.written_title
        title = words({name: has for name, has in self.features.items() if name not in self.axes})
        return title if len(title) <= MAX_TITLE else title[:MAX_TITLE].rpartition(",")[0]

    @contextmanager
    def _place_of_errors(self) -> Iterator[None]:
        """Turn an error into an InputError, as :meth:`unprepared` does."""
        try:
            yield
        except Exception as error:
            raise self.unprepared(error) from error

    def unprepared(self, error: Exception) -> Exception:
        """An InputError that names the entry's line, for an error while the case was prepared.

        An error of this program that says its reason itself, and one of the system, stay.
        """
        if isinstance(error, CallError):
            sentence = f"{self.label}: {error.field}: {error}"
        elif isinstance(error, OSError) or type(error).__module__.startswith("conformance."):
            return error
        else:
            sentence = f"{self.label}: it cannot be prepared: {reason_of(error)}"
        return InputError([Problem(self.file, self.line, 1, sentence)])

    @property
    def is_graph(self) -> bool:
        """Whether the model has several nodes, not only the one that the call describes."""
        return self.written_call.graph is not None

    @property
    def is_undecided(self) -> bool:
        """Whether no contract follows from the features, as the variant has others."""
        return self.relation is not None and RELATIONS[self.relation].undecided

    @property
    def counts_for_coverage(self) -> bool:
        """Whether the case counts for coverage.

        A call that must be rejected does not, nor does a graph: nobody has measured what its
        outputs show about a single node.
        """
        return self.contract.demands in ("computes", "either") and not self.is_graph

    @property
    def label(self) -> str:
        """The id without its theme: ``name[axis=value,…]``."""
        return self.id.partition("/")[2]


_IMPOSSIBLE: Final = [part.impossible for part in PARTS if part.impossible]
_EXCLUDED: Final = [part.excluded for part in PARTS if part.excluded]
#: The end of a sentence about a call that the operator's documentation excludes.
ON_PURPOSE: Final = "; a call that is invalid on purpose needs the contract 'rejects' or 'either'"


def misfits(
    call: Call, demands: str, relation: RelationName | None = None
) -> Iterator[tuple[str, str]]:
    """The contradictions in ``call``, as (field, sentence); a sentence does not repeat the field.

    A call that must be rejected may violate the operator's own rules on purpose. The rules that the
    suite needs in order to build a call hold for every contract.
    """
    for impossible in _IMPOSSIBLE:
        for is_wrong, field, sentence in impossible(call):
            if is_wrong:
                yield field, sentence
    for number, (each, written) in enumerate(zip(call.calls, call.earlier_calls, strict=False)):
        for field, sentence in misfits(each, "rejects" if written.refused else demands):
            yield f"earlier_calls.{number}.{field}", sentence
    if relation is not None:
        reason = RELATIONS[relation].misfit(call)
        if reason:
            yield "relation", f"{relation}: {reason}"
        if demands == "rejects":
            yield "relation", "a call that must be refused has no variant"
    if demands != "computes" and relation is None:
        return
    attributes = attributes_of(call)
    for excluded in _EXCLUDED:
        for is_wrong, field, sentence in excluded(call, attributes):
            if is_wrong:
                yield field, f"{sentence}{ON_PURPOSE}"
