"""A case: one call of the operator, fully concrete, and what is demanded of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from conformance.base.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.case.call import Call, Model
from conformance.case.tensors import Step
from conformance.case.variants import RELATIONS, RelationName

#: Marks that mean something to pytest, which a tag must not say by accident.
PYTEST_MARKS: Final = ("filterwarnings", "parametrize", "skip", "skipif", "usefixtures", "xfail")


def _no_mark(tag: str) -> str:
    if tag in PYTEST_MARKS:
        raise ValueError("is a mark of pytest's own; choose another word")
    return tag


Tag = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$"), AfterValidator(_no_mark)]


#: A title fits a row of a report.
MAX_TITLE: Final = 80
#: How a title begins: with a capital letter, or a name that is written as the operator has it.
_NAMES: Final = "|".join((*INPUT_NAMES, *OUTPUT_NAMES, *ATTRIBUTE_BY_NAME))
_TITLE_BEGINS: Final = rf"^([A-Z]|({_NAMES})\b)"


def _as_title(text: str) -> str:
    if len(text) > MAX_TITLE:
        raise ValueError(f"has {len(text)} characters, and {MAX_TITLE} are the most")
    if not text.isprintable():
        raise ValueError("must be one line of text")
    if not re.match(_TITLE_BEGINS, text):
        raise ValueError("must begin with a capital letter, or with an input, output or attribute")
    if text.endswith((".", " ")):
        raise ValueError("must not end with a full stop or a blank")
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


class Contract(Model):
    """What is demanded of a case, and who says so."""

    demands: Literal["computes", "rejects", "either"] = "computes"
    """`computes`: the oracle's values. `rejects`: an error that a person can act on. `either`: the
    specification is silent; compute right or reject."""
    basis: Literal["specified", "requested"] = "specified"
    """`specified`: documentation or a released decision. `requested`: an issue asks for it."""
    source: str
    """Where it is written: a link, or the document and its section."""
    why: str = ""
    """One sentence: why the contract is what it is."""
    mentions: tuple[str, ...] = ()
    """Words of which a rejection must name one, or it is marked vague."""


#: Features whose part in the result is measured (:mod:`conformance.bundle.sensitivity`).
EffectName = Literal[
    "rotary",
    "rotary_interleaved",
    "position_ids",
    "window",
    "window_edge",
    "softcap",
    "attention_bias",
    "head_sink",
    "smooth_softmax",
    "causal",
    "scale",
    "ragged",
    "past",
    "qk_norm",
    "quantisation",
    "dequantisation",
    "channels",
    "sliding_window_cache",
]


class Description(Model):
    """What a case says beside its call."""

    why: str = ""
    """What this case would show that no other does."""
    insensitive_to: tuple[EffectName, ...] = ()
    """Features of the call that must not change its output, because that is the point of the case.
    Any other must change it by 20 error budgets or more, or the case is refused."""
    tags: tuple[Tag, ...] = ()
    links: tuple[str, ...] = ()
    contract: Contract | None = None
    relation: RelationName | None = None
    """The call is also made in another form, and the two must agree."""
    time_limit_seconds: Annotated[float, Strict(), Field(gt=0, le=3600)] = 30.0


class Fields(Call, Description):
    """All that defaults, an entry or a value of a compound axis may say."""


@dataclass(frozen=True)
class Case:
    """One concrete case.

    ``title`` says in words what is called, the same of all cases of an entry. ``axes`` maps each
    axis of the matrix it came from to the value's label; ``line`` is where its entry begins in
    ``file``; ``steps`` is what ``call`` comes down to.
    """

    id: str
    theme: str
    name: str
    title: str
    axes: dict[str, str]
    file: Path
    line: int
    question: str
    call: Call
    steps: tuple[Step, ...]
    contract: Contract
    why: str
    tags: tuple[str, ...]
    links: tuple[str, ...]
    time_limit_seconds: float
    relation: RelationName | None = None
    insensitive_to: tuple[EffectName, ...] = ()

    @property
    def label(self) -> str:
        """The id without its theme: ``name[axis=value,…]``."""
        return self.id.partition("/")[2]


def misfits(
    call: Call, demands: str, relation: RelationName | None = None
) -> Iterator[tuple[str, str]]:
    """What in ``call`` cannot be, as (field, sentence).

    Calls that must be rejected may be wrong on purpose in what the operator checks; what the
    suite itself needs to build a call holds always.
    """
    kind = call.cache_kind
    if kind == "static" and call.max_sequence_length is None:
        yield "cache", "a static cache needs max_sequence_length"
    if kind != "static" and call.max_sequence_length is not None:
        yield "max_sequence_length", f"only a static cache has a capacity; cache is {kind}"
    if kind == "none" and call.past_sequence_length:
        yield "past_sequence_length", "cache is none, so there are no past tokens"
    if call.shared_buffer and kind != "static":
        yield "shared_buffer", "only a static cache can share its buffer"
    if (call.shared_buffer or call.loop) and call.presents != "both":
        yield "presents", "a shared buffer and a loop need both presents"
    if call.loop and call.sequence_length != 1:
        yield "sequence_length", "a loop gives the sequence_length of each call itself"
    if call.loop and kind == "none":
        yield "cache", "a loop needs a cache"
    if call.loop and (call.kv_sequence_length is not None or call.key_value == "omitted"):
        yield "loop", "a loop appends as many key/value tokens as it has query tokens, or none"
    if call.key_value in ("packed", "zero_length") and call.kv_sequence_length is not None:
        yield (
            "kv_sequence_length",
            f"key_value {call.key_value} decides the length of key and value",
        )
    lengths = call.total_sequence_lengths
    if lengths is not None and len(lengths) != call.batch_size:
        yield "total_sequence_lengths", f"{len(lengths)} lengths for a batch of {call.batch_size}"
    if call.rotary == "none" and call.position_ids:
        yield "position_ids", "positions matter to rotary only; rotary is none"
    if call.rotary == "none" and (call.rotary_dim or call.rotary_cache_length):
        field = "rotary_dim" if call.rotary_dim else "rotary_cache_length"
        yield field, "rotary is none"
    if relation is not None:
        said = RELATIONS[relation].misfit(call)
        if said:
            yield "relation", f"{relation}: {said}"
        if demands == "rejects":
            yield "relation", "a call that must be rejected has no other form"
    if demands != "computes" and relation is None:
        return
    hint = "; a case that is wrong on purpose has the contract 'rejects' or 'either'"
    if call.num_heads % call.kv_num_heads:
        yield (
            "num_heads",
            f"num_heads {call.num_heads} is not a multiple of"
            f" kv_num_heads {call.kv_num_heads}{hint}",
        )
    if call.rotary != "none" and (call.rotary_dim or call.head_size) % 2:
        yield "rotary_dim", f"rotary turns pairs of elements: an even number of them{hint}"
    if (call.rotary_dim or 0) > call.head_size:
        yield (
            "rotary_dim",
            f"rotary_dim {call.rotary_dim} is more than head_size {call.head_size}{hint}",
        )
    if call.local_window_size is not None and call.local_window_size != -1:
        if call.causal == 0:
            yield "local_window_size", f"must be -1 when causal is 0{hint}"
        if call.local_window_size < 1:
            yield "local_window_size", f"a window has 1 token at least, or is -1{hint}"
