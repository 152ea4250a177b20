"""A case: one concrete call of the operator, and its contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, Strict, WithJsonSchema

from conformance.base.explain import reason_of
from conformance.base.signature import ATTRIBUTE_BY_NAME, INPUT_NAMES, OUTPUT_NAMES
from conformance.base.yaml_source import InputError, Problem
from conformance.case.call import Call, CallError, Model
from conformance.case.contract import Contract
from conformance.case.contracts import contract_by_features
from conformance.case.features import features_of
from conformance.case.tensors import BIT_WIDTHS, Step, attributes_of, steps_of
from conformance.case.variants import RELATIONS, RelationName
from conformance.case.wording import words

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


#: The parts of a call whose effect is measured (:mod:`conformance.bundle.sensitivity`).
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
    "norm_epsilon",
    "query_seqlens",
    "quantisation",
    "dequantisation",
    "channels",
    "sliding_window_cache",
]


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


class Fields(Call, Description):
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
            contract = self.written_contract or contract_by_features(self.call, self.steps)
            if contract is None:
                sentence = "none follows from the features of this call; write one"
                raise CallError("contract", sentence)
        return contract

    @cached_property
    def features(self) -> dict[str, str | None]:
        """The value of each feature."""
        return features_of(self.call, self.steps)

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


def misfits(
    call: Call, demands: str, relation: RelationName | None = None
) -> Iterator[tuple[str, str]]:
    """The contradictions in ``call``, as (field, sentence); a sentence does not repeat the field.

    A call that must be rejected may violate the operator's own rules on purpose. The rules that the
    suite needs in order to build a call hold for every contract.
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
        yield "loop", "each call of a loop appends a key/value token for each query token, or none"
    if call.key_value in ("packed", "zero_length") and call.kv_sequence_length is not None:
        yield (
            "kv_sequence_length",
            f"key_value {call.key_value} decides the length of key and value",
        )
    if call.query_seqlens is not None and (call.key_value == "zero_length" or kind == "none"):
        yield "query_seqlens", "query_seqlens needs new key and value, and a cache"
    if call.rotary == "none" and call.position_ids:
        yield "position_ids", "position_ids need rotary, which is none"
    if call.rotary == "none" and (call.rotary_dim or call.rotary_cache_length):
        field = "rotary_dim" if call.rotary_dim else "rotary_cache_length"
        yield field, f"{field} is given, but rotary is none"
    if relation is not None:
        reason = RELATIONS[relation].misfit(call)
        if reason:
            yield "relation", f"{relation}: {reason}"
        if demands == "rejects":
            yield "relation", "a call that must be rejected has no variant"
    if demands != "computes" and relation is None:
        return
    for is_wrong, field, sentence in _exclusions(call):
        if is_wrong:
            yield field, f"{sentence}{ON_PURPOSE}"


#: The end of a sentence about a call that the operator's documentation excludes.
ON_PURPOSE: Final = "; a call that is invalid on purpose needs the contract 'rejects' or 'either'"
#: The values that an attribute can have.
_ALLOWED: Final = {
    **dict.fromkeys(("causal", "sliding_window_cache"), (0, 1)),
    "smooth_softmax": (-1, 0, 1),
    "qk_output": (0, 1, 2),
}


def _exclusions(call: Call) -> Iterator[tuple[object, str, str]]:
    """What the documentation excludes: whether ``call`` has it, a field, and a sentence."""
    heads, kv_heads, size = call.num_heads, call.kv_num_heads, call.head_size
    rotated, window = call.rotary_dim or 0, call.local_window_size
    sentence = f"num_heads {heads} is not a multiple of kv_num_heads {kv_heads}"
    yield heads % kv_heads, "num_heads", sentence
    is_odd = call.rotary != "none" and (rotated or size) % 2
    yield is_odd, "rotary_dim", "rotary_dim must be even, since pairs of elements rotate"
    yield rotated > size, "rotary_dim", f"rotary_dim {rotated} is more than head_size {size}"
    chunks = call.query_seqlens is not None
    yield chunks and call.causal == 0, "query_seqlens", "causal must be 1 with query_seqlens"
    if window is not None and window != -1:
        sentence = "local_window_size must be -1 if causal is 0"
        yield call.causal == 0, "local_window_size", sentence
        sentence = "local_window_size must be -1 (no window) or at least 1"
        yield window < 1, "local_window_size", sentence
    if call.graph is not None:
        return
    attributes = attributes_of(call)
    for name, allowed in _ALLOWED.items():
        values = " or ".join(map(str, allowed))
        yield attributes.get(name, 0) not in allowed, name, f"{name} must be {values}"
    yield (call.softcap or 0) < 0, "softcap", "softcap must be 0 (none) or positive"
    kinds = [attributes.get(f"{side}_quant_type", "NONE") != "NONE" for side in "kv"]
    said = attributes.get("kv_cache_bit_width")
    codes, width = call.cache_dtype, BIT_WIDTHS.get(call.cache_dtype or "")
    if width is None:
        sentence = "a quantised cache needs cache_dtype int8, uint8 or float8e4m3fn"
        yield any(kinds), "k_quant_type", sentence
        yield said, "kv_cache_bit_width", "only a quantised cache has a bit width"
    else:
        yield not all(kinds), "cache_dtype", f"{codes} needs k_quant_type and v_quant_type"
        sentence = f"{codes} needs kv_cache_bit_width: {width}"
        yield all(kinds) and said != width, "kv_cache_bit_width", sentence
    if not call.inputs:  # which may have other lengths
        yield from _lengths_excluded(call)


def _lengths_excluded(call: Call) -> Iterator[tuple[object, str, str]]:
    past, chunks = call.past_sequence_length, call.query_seqlens is not None
    first, *further = call.loop or (call.sequence_length,)
    no_new = call.key_value in ("zero_length", "omitted") or call.kv_sequence_length == 0
    longest = past if no_new else past + (call.kv_sequence_length or first)
    written = call.written_totals
    totals = max(written[0], default=longest)
    keys = totals if no_new else totals + sum(further)
    if len(written) > 1:
        keys = max(chain(*written), default=totals)
    sliding, window = call.sliding_window_cache == 1, call.local_window_size or 0
    yield (
        first and not min(keys, longest),
        "key_value",
        "nothing to attend to: no past, no new keys",
    )
    if not chunks and call.cache_kind != "static":
        sentence = f"the longest sequence has {longest} tokens, past and new, not {totals}"
        yield totals != longest, "total_sequence_lengths", sentence
        sentence = "only a static cache and query_seqlens have a total_sequence_length of their own"
        yield call.total_sequence_length not in (None, keys), "total_sequence_length", sentence
    held, rows = keys if call.shared_buffer else past, call.max_sequence_length or max(keys, past)
    sentence = f"{rows} rows are too few for {held} tokens"
    yield held > rows and not (chunks or sliding), "max_sequence_length", sentence
    sentence = f"{rows} rows are fewer than local_window_size {window}"
    yield sliding and rows < window, "max_sequence_length", sentence
    table = call.rotary_cache_length or keys
    yield table < keys, "rotary_cache_length", f"{keys} tokens need as many rows"
