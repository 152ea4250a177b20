"""The contract of a call, which follows from its features: what each rests on, and who says more.

A call must be computed, on the basis of the weakest of its features. It may be computed or rejected
where the texts leave a question open, and where only some execution providers honour an input.
Single providers must do what a merged decision says of them. Of several demands on a provider the
strictest counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from conformance.operator.features import BY_NAME, PARTS
from conformance.operator.part import Basis, Ground, Row, Terms, has, quoted, specified
from conformance.operator.parts.attention_bias import ATTENTION_BIAS
from conformance.operator.parts.cache import CACHE
from conformance.operator.parts.key_value import KEY_VALUE
from conformance.operator.parts.mask import WINDOW
from conformance.operator.rules import OPEN_QUESTIONS, SAID_ELSEWHERE, TOGETHER
from conformance.operator.sources import CPU, DOCUMENTATION, ONNXRUNTIME

#: The bases from the strongest to the weakest.
STRENGTH: Final[tuple[Basis, ...]] = ("specified", "established", "requested")
#: The demands from the mildest to the strictest.
STRICTNESS: Final = ("computes", "either", "rejects")
_HONOURED: Final = tuple(each for part in PARTS for each in part.honoured)
#: What merged decisions demand of single providers.
DECISIONS: Final = tuple(each for part in PARTS for each in part.decisions)
#: A call without any feature.
PLAIN: Final = specified("implements grouped-query attention with past state (KV cache) support")
#: A merged decision that a window is not applied to a borrowed cache on WebGPU.
_WINDOWLESS: Final = f"{ONNXRUNTIME}/pull/32462"


# What a call rests on


def grounds_of(features: Mapping[str, str | None]) -> list[Ground]:
    """The grounds of a call with ``features``, without those of values that add nothing."""
    unsaid = [
        values for value, others in SAID_ELSEWHERE if has(features, [value]) for values in others
    ]
    own = (
        BY_NAME[name].values[value].ground
        for name, value in features.items()
        if value is not None and not any(has({name: value}, [values]) for values in unsaid)
    )
    together = (ground for values, ground in TOGETHER if has(features, values))
    return [*filter(None, own), *together]


def weakest_of(features: Mapping[str, str | None]) -> Basis:
    """The weakest basis of the features of a call: its contract cannot promise more."""
    bases = (ground.basis for ground in grounds_of(features))
    return max(bases, key=STRENGTH.index, default="specified")


def contract_on(features: Mapping[str, str | None]) -> Terms:
    """The contract of a call with ``features`` that must be computed, without default values.

    The source is the operator's documentation, unless another source says more, or does it.
    """
    basis = weakest_of(features)
    weakest = [ground for ground in [PLAIN, *grounds_of(features)] if ground.basis == basis]
    source = next((g.source for g in weakest if g.source != DOCUMENTATION), DOCUMENTATION)
    if basis == "specified":  # words of a text are checked against that text
        weakest = [ground for ground in weakest if ground.source == source]
    said = list(dict.fromkeys(ground.words for ground in weakest))
    terms = {"basis": basis, "source": source, "why": _WHY[basis](said)}
    return {field: value for field, value in terms.items() if value != "specified"}


def _listed(parts: Sequence[str], last: str) -> str:
    """``a, b and c``."""
    return f" {last} ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _unsaid(said: Sequence[str]) -> str:
    """The questions that no text answers, in one sentence, then the other sentences."""
    sentences = [words for words in said if words.endswith(".")]
    if questions := [words for words in said if words not in sentences]:
        open_questions = f"The documentation does not say {_listed(questions, 'or')}"
        sentences.insert(0, f"{open_questions}; ONNX Runtime's kernels agree.")
    return " ".join(sentences)


_WHY: Final[Mapping[Basis, Callable[[Sequence[str]], str]]] = {
    "specified": lambda said: f"In words: {_listed([quoted(words) for words in said], 'and')}.",
    "established": _unsaid,
    "requested": lambda said: said[0],
}


# What is demanded


def contract_of(row: Row) -> Terms:
    """The contract of a call with these features, as a case file has it."""
    usual = _open(row) or contract_on(row)  # on a provider that no text names
    whole = {name: usual.pop(name) for name in ("readings",) if name in usual}
    if has(row, (KEY_VALUE.of("zero_length"), WINDOW.of("shorter"))):
        whole["disputed"] = _WINDOWLESS
    demands = usual.get("demands", "computes")
    providers: dict[str, Terms] = {}
    if has(row, (CACHE.of("sliding_window"),)) and demands == "computes":
        providers[CPU], usual = _on_a_window_cache(row, usual)
    for honoured in (each for each in _HONOURED if has(row, each.values)):
        for name in honoured.providers:
            providers.setdefault(name, {"demands": demands, **usual})
        for decision in (each for each in honoured.partly if has(row, each.values)):
            providers |= dict.fromkeys(decision.providers, decision.terms)
        others = usual.get("mentions", ()) if honoured.adds_mentions else ()
        usual = _may_reject(honoured.why, (*honoured.mentions, *others))
    for name, terms in _decided(row):
        now = providers[name]["demands"] if name in providers else demands
        if STRICTNESS.index(terms["demands"]) > STRICTNESS.index(now):
            providers[name] = terms
    return {**usual, **whole, **({"providers": providers} if providers else {})}


def _open(row: Row) -> Terms | None:
    """The contract of a call on which the texts leave a question open."""
    asked = () if has(row, (KEY_VALUE.of("omitted"),)) else OPEN_QUESTIONS
    question = next((each for each in asked if has(row, each.values)), None)
    if question is None:
        return None
    return {
        "demands": "either",
        **({"basis": "established"} if question.established else {}),
        "source": question.source,
        "why": question.why,
        "mentions": [*question.mentions],
        **({"readings": [*question.readings]} if question.readings else {}),
    }


def _on_a_window_cache(row: Row, usual: Terms) -> tuple[Terms, Terms]:
    """The contracts of the CPU provider and of others: cases have one row more than the window."""
    on_cpu = {"demands": "computes", **usual}
    if usual["source"] == DOCUMENTATION:
        on_cpu["why"] += f" {quoted('The CPU implementation accepts any `C >= W`')}."
    mentions = ("sliding_window_cache", "local_window_size", "capacity")
    if not has(row, (ATTENTION_BIAS.given,)):
        words = "An execution provider may accept only part of the `C >= W` range."
        return on_cpu, _may_reject(f"{quoted(words)}.", mentions)
    words = (
        "CPU supports this windowed absolute-column indexing; CUDA rejects attention_bias when"
        " sliding_window_cache is 1."
    )
    return on_cpu, _may_reject(f"{quoted(words)}.", ("attention_bias", *mentions))


def _may_reject(why: str, mentions: Sequence[str]) -> Terms:
    """A contract by which a call is computed or rejected, as the documentation says."""
    source = DOCUMENTATION
    return {"demands": "either", "source": source, "why": why, "mentions": [*mentions]}


def _decided(row: Row) -> Iterator[tuple[str, Terms]]:
    """What merged decisions demand of single providers."""
    for decision in (each for each in DECISIONS if has(row, each.values)):
        for name in decision.providers:
            yield name, decision.terms
