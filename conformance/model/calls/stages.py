"""The calls that a decoder makes of a node: prompts, chunks, single tokens, batches, loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from conformance.model.calls.forms import Form

#: Prompts: a short one, and one token more than a tile of 16 and of 64 keys.
PROMPTS: Final = (6, 17, 65)
#: Tokens in the cache before one more: the last of a tile and the first of the next, and many.
PASTS: Final = (1, 15, 16, 63, 64, 600)
#: New tokens, and tokens in the cache before them.
CHUNKS: Final = ((5, 12), (17, 64))
#: Prompts that are longer than a local window: by one token and by a tile.
_BEYOND: Final = (1, 17)
#: For a window of more tokens, the only longer prompt exceeds it by a tile.
_SHORT_WINDOW: Final = 128
#: The most scores of a prompt, one for each pair of tokens and head: more take the oracle too long.
MOST_SCORES: Final = 1 << 23
#: The end of the label of a call with fewer heads.
FEW_HEADS: Final = "_few_heads"
#: The most scores of a call that the user asks for; with more, it has fewer heads.
_ALL_SCORES: Final = 1 << 27
#: The most scores of a call that is tried again in a buffer.
_FEW_SCORES: Final = 1 << 15
#: The most elements of keys in the caches of all stages of a group together.
MOST_ELEMENTS: Final = 1 << 24
#: The number of rows of a static cache is a multiple of this if the graph leaves it open.
_ROWS: Final = 64


@dataclass(frozen=True)
class Lengths:
    """The lengths that the user asks for; empty: those of a decoder."""

    batch_sizes: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class NodeCall:
    """One call of a node, as a decoder makes it.

    ``phase`` is ``prompt``, ``chunk``, ``decode`` or ``loop``; ``tokens`` is the number of tokens
    of the longest sequence after the call. ``fields`` are the fields of the call that the form
    leaves open. ``buffer``: the program keeps the cache in a buffer, although the graph does not
    require it.
    """

    label: str
    words: str
    phase: str
    tokens: int
    fields: dict[str, Any] = field(default_factory=dict)
    batch: bool = False
    buffer: bool = False

    @property
    def ragged(self) -> bool:
        """Whether its sequences differ in length."""
        return "total_sequence_lengths" in self.fields

    @property
    def new(self) -> int:
        """The most new tokens of a call."""
        return int(max(self.fields.get("loop") or [self.fields.get("sequence_length", 1)]))

    @property
    def use(self) -> str:
        """The use that makes such a call."""
        if self.batch:
            return "batches"
        in_parts = any(new > 1 for new in self.fields.get("loop", ())[1:])
        return "chunked prompts" if self.phase == "chunk" or in_parts else "one chat"


def stages_of(form: Form, asked: Lengths) -> list[NodeCall]:
    """The stages for nodes of this form, without those for which the oracle takes too long."""
    stages = possible_stages_of(form, asked)
    if asked.tokens:
        return [_with_few_heads(form, stage) for stage in stages]
    return _affordable(form, stages)


def _with_few_heads(form: Form, stage: NodeCall) -> NodeCall:
    """The stage with the query heads of one key/value head, if it has too many scores."""
    heads, kv_heads = form.fields["num_heads"], form.fields["kv_num_heads"]
    if kv_heads == 1 or _scores(form, stage) <= _ALL_SCORES:
        return stage
    return replace(
        stage,
        label=f"{stage.label}{FEW_HEADS}",
        words=f"{stage.words} with {heads // kv_heads} of {heads} heads",
        fields={**stage.fields, "num_heads": heads // kv_heads, "kv_num_heads": 1},
    )


def possible_stages_of(form: Form, asked: Lengths) -> list[NodeCall]:
    """All stages for nodes of this form, without repeated labels or calls."""
    rows = (form.table_rows, form.capacity if form.cache == "static" else None)
    most = min(filter(None, rows), default=1 << 30)
    fitting = [stage for stage in _stages(form, asked, most) if stage.tokens <= most]
    if form.chunks:
        fitting = [_counted(stage) for stage in fitting]
    found: dict[str, NodeCall] = {}
    for stage in _with_buffers(form, fitting):
        if stage.fields not in [other.fields for other in found.values()]:
            found.setdefault(stage.label, stage)
    return list(found.values())


def beyond_window(form: Form, stages: Sequence[NodeCall]) -> NodeCall | None:
    """A prompt that is longer than the window, with fewer heads or a shorter window.

    None if one of the ``stages`` is longer, or the graph allows no such prompt.
    """
    window, size = form.window, form.fields["num_heads"] // form.fields["kv_num_heads"]
    if window is None or form.sequence_length or any(s.tokens > window for s in stages):
        return None
    fewer: dict[str, Any] = {"num_heads": size, "kv_num_heads": 1}
    told = f"{size} of {form.fields['num_heads']} heads"
    if (window + _BEYOND[-1]) ** 2 * size > MOST_SCORES:
        window = _SHORT_WINDOW
        fewer["local_window_size"] = window
        told += f" and a window of {window} in place of {form.window}"
    new = window + _BEYOND[-1]
    if form.table_rows is not None and form.table_rows < new:
        return None
    plain = _stage(form, "prompt", new, 0, form.batch_size or 1)
    made = replace(
        plain,
        label=f"{plain.label}{FEW_HEADS}",
        words=f"{plain.words} with {told}",
        fields={**plain.fields, **fewer},
    )
    return next(_with_buffers(replace(form, shared=False), [made]))


def _affordable(form: Form, stages: Sequence[NodeCall]) -> list[NodeCall]:
    """The stages, without less important ones whose large caches take the oracle too long."""
    kept, left = set(), MOST_ELEMENTS
    for stage in sorted(stages, key=partial(_rank, form)):
        size = cache_elements(form, stage)
        if form.sequence_length is None and _scores(form, stage) > MOST_SCORES:
            continue
        if size <= left or stage.label == f"decode_on_{form.window}":
            kept.add(stage.label)
            left -= size
    return [stage for stage in stages if stage.label in kept]


def _rank(form: Form, stage: NodeCall) -> int:
    """0 for a model's most important stages: a prompt, and one token more than its window."""
    window = form.window or PASTS[-1]
    telling = ("prompt_17", f"decode_on_{window}", f"chunk_17_on_{window}", "loop")
    return telling.index(stage.label) if stage.label in telling else len(telling)


def cache_elements(form: Form, stage: NodeCall) -> int:
    """Elements of the present key of a stage."""
    rows = stage.fields.get("max_sequence_length", stage.tokens)
    heads = int(form.fields["kv_num_heads"]) * int(stage.fields.get("batch_size", 1))
    return int(rows) * heads * int(form.fields["head_size"])


def _stages(form: Form, asked: Lengths, most: int) -> Iterator[NodeCall]:
    """The stages, some of which may have more tokens than ``most``."""
    batches = asked.batch_sizes or (form.batch_size or 1,)
    for batch in batches:
        if form.batch_size not in (None, batch):
            continue
        for new in _prompts(form, asked):
            yield _stage(form, "prompt", new, 0, batch)
        if form.cache == "none":
            continue
        for new, past in _chunks(form, asked):
            yield _stage(form, "chunk", new, past, batch)
        if form.chunks and batch == batches[0]:
            for new in [form.sequence_length] if form.sequence_length else [1, 8]:
                yield _padded(form, new)
        for past in _pasts(form, asked, most):
            if form.sequence_length in (None, 1):
                yield _stage(form, "decode", 1, past, batch)
    if asked.batch_sizes or asked.tokens or form.batch_size is not None:
        return
    window = form.window or 0
    if form.sequence_length is None:
        yield _ragged(form, "prompt", 9, (9, 5))
    if form.cache != "none" and form.sequence_length in (None, 1):
        yield _ragged(form, "decode", 1, (40, 17))
        if window > 1:
            yield _ragged(form, "decode", 1, (window + 5, max(window // 2, 2)))
    if form.sequence_length is None and form.cache != "none" and not form.borrows:
        words = "a prompt of 6 tokens, then 1, 1 and 3 more"
        yield NodeCall("loop", words, "loop", 11, {"loop": [6, 1, 1, 3]})


def _prompts(form: Form, asked: Lengths) -> list[int]:
    if form.sequence_length is not None:
        return [form.sequence_length]
    if asked.tokens:
        return sorted(set(asked.tokens))
    if not form.window:
        return [*PROMPTS]
    beyond = _BEYOND if form.window <= _SHORT_WINDOW else _BEYOND[-1:]
    return sorted({*PROMPTS, *(form.window + more for more in beyond)})


def _chunks(form: Form, asked: Lengths) -> list[tuple[int, int]]:
    """Pairs of numbers: the new tokens, and the tokens before them."""
    if form.sequence_length is not None:
        new = form.sequence_length
        return [(new, past) for past in (4, 64)] if new > 1 else []
    if asked.tokens:
        return [(tokens - tokens // 2, tokens // 2) for tokens in asked.tokens if tokens > 3]
    return [*CHUNKS, (CHUNKS[-1][0], form.window)] if form.window else [*CHUNKS]


def _pasts(form: Form, asked: Lengths, most: int) -> list[int]:
    if asked.tokens:
        return sorted({tokens - 1 for tokens in asked.tokens if tokens > 1})
    around = [form.window - 1, form.window] if form.window else []
    below = max(form.window, PASTS[-1]) if form.window and form.window < 64 else form.window
    pasts = {
        *(past for past in PASTS if below is None or past < below),
        *around,
        *([most - 1] if form.cache == "static" and most < 1 << 13 else []),
    }
    return sorted(past for past in pasts if past > 0)


def _stage(form: Form, phase: str, new: int, past: int, batch: int) -> NodeCall:
    of = f" in a batch of {batch}" if batch > 1 else ""
    suffix = f"_batch_{batch}" if batch > 1 else ""
    if phase == "prompt":
        label, words = f"prompt_{new}", f"a prompt of {_tokens(new)}"
    elif phase == "chunk":
        label, words = f"chunk_{new}_on_{past}", f"{_tokens(new)} on a past of {past}"
    else:
        label, words = f"decode_on_{past}", f"one token on a past of {past}"
    fields = {**_past(form, new, past), "sequence_length": new}
    if batch > 1:
        fields["batch_size"] = batch
    return NodeCall(label + suffix, words + of, phase, past + new, fields, batch > 1)


def _padded(form: Form, new: int) -> NodeCall:
    """A chunk of ``new`` rows of which each sequence of a batch has fewer tokens, one of them none.

    In a batch of one, the sequence has one token less than there are rows.
    """
    few = max(new // 2, 1)
    counts, starts = [few, 0, new], [9, 12, 3]
    if form.batch_size is not None:
        counts, starts = [max(new - 1, 1)] * form.batch_size, [9] * form.batch_size
    totals = [start + count for start, count in zip(starts, counts, strict=True)]
    fields = {
        **_past(form, new, max(starts)),
        "sequence_length": new,
        "batch_size": len(counts),
        "total_sequence_lengths": totals,
        "query_seqlens": counts,
    }
    told = f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}" if counts[1:] else f"{counts[0]}"
    words = f"padded chunks of {_tokens(new)}, of which {told} are no padding"
    tokens = max(starts) + new  # the padding needs rows, too
    return NodeCall(f"padded_{new}", words, "chunk", tokens, fields, batch=len(counts) > 1)


def _counted(stage: NodeCall) -> NodeCall:
    """The stage with query_seqlens, without padding unless it has its own or is a ragged prompt."""
    if "query_seqlens" in stage.fields:
        return stage
    batch = int(stage.fields.get("batch_size", 1))
    rows = stage.fields.get("loop") or [stage.fields.get("sequence_length", 1)]
    totals = stage.fields.get("total_sequence_lengths") or [stage.tokens] * batch
    counts = [[min(new, total) for total in totals] for new in rows]
    if "loop" in stage.fields:
        counts = [[new] * batch for new in rows]
    own = {"query_seqlens": counts if "loop" in stage.fields else counts[0]}
    return replace(stage, fields={**stage.fields, **own})


def _ragged(form: Form, phase: str, new: int, totals: tuple[int, int]) -> NodeCall:
    longest = max(totals)
    fields = {
        **_past(form, new, longest - new),
        "sequence_length": new,
        "batch_size": 2,
        "total_sequence_lengths": list(totals),
    }
    lengths = f"of {totals[0]} and {totals[1]} tokens"
    words = f"prompts {lengths}" if phase == "prompt" else f"one token each on sequences {lengths}"
    label = f"ragged_{phase}_{totals[0]}_{totals[1]}"
    return NodeCall(label, words, phase, longest, fields, batch=True)


def _past(form: Form, new: int, past: int) -> dict[str, Any]:
    """The number of tokens in the past; a borrowed past contains the new tokens already."""
    if form.cache == "none":
        return {}
    if form.borrows:
        return {"past_sequence_length": past + new}
    return {"past_sequence_length": past} if past else {"cache": "concatenated"}


def _with_buffers(form: Form, stages: Sequence[NodeCall]) -> Iterator[NodeCall]:
    """The stages with the cache as the graph has it, and then as the program keeps it."""
    for stage in stages:
        rows = form.capacity or (stage.tokens // _ROWS + 1) * _ROWS
        if form.cache == "window":
            window = (form.window or rows) + form.slack
            shared = True if form.shared else None
            yield _in_buffer(stage, form.capacity or window, shared=shared)
        elif form.cache == "static":
            yield _in_buffer(stage, rows)
        else:
            yield stage
    if (form.cache == "static" and not form.borrows) or form.shared:
        alone = [stage for stage in stages if not stage.batch and stage.phase != "loop"]
        few = {stage.phase: stage for stage in alone if _scores(form, stage) <= _FEW_SCORES}
        for stage in few.values():
            rows = form.capacity or (stage.tokens // _ROWS + 1) * _ROWS
            yield _in_buffer(stage, rows, shared=not form.borrows)
            fixed = form.capacity and form.sequence_length and stage.tokens < rows
            if fixed and "total_sequence_length" in form.given:
                yield _total_is_capacity(_in_buffer(stage, rows), rows)


def _scores(form: Form, stage: NodeCall) -> int:
    """The number of scores, which the oracle's time grows with."""
    new = int(stage.fields.get("sequence_length", 1))
    return int(form.fields["num_heads"]) * new * stage.tokens


def _in_buffer(stage: NodeCall, rows: int, *, shared: bool | None = None) -> NodeCall:
    """The stage with a buffer for its past; ``shared`` is None if that is already the graph's form.

    A layer that borrows reads the buffer of another layer and has separate presents.
    """
    fields = {name: value for name, value in stage.fields.items() if name != "cache"}
    fields["max_sequence_length"] = rows
    if shared is None:
        return replace(stage, fields=fields)
    how = f"past and present in one buffer of {rows}" if shared else f"from a buffer of {rows}"
    return replace(
        stage,
        label=f"{stage.label}_buffer",
        words=f"{stage.words}, {how}",
        fields={**fields, "shared_buffer": True} if shared else fields,
        buffer=True,
    )


def _total_is_capacity(stage: NodeCall, rows: int) -> NodeCall:
    """The stage as a program with fixed shapes calls it: only seqlens_k counts the tokens."""
    return replace(
        stage,
        label=f"{stage.label}_total_{rows}",
        words=f"{stage.words}, with the {rows} rows of the buffer as total_sequence_length",
        fields={**stage.fields, "total_sequence_length": rows},
        buffer=True,
    )


def _tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"
