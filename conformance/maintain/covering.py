"""``python -m conformance.maintain.covering`` adds rows to cases/covering/pairs.yaml.

The factors are the features of a call, and the goals their pairs of values that no rule forbids and
no row has. Of several candidates for a row the one with most goals is kept, with values that make
all its features show. Rows are only added, so ids and values of those before never change. They are
a greedy covering array, made in stages:

1. Values that every runtime should support, with many pairs in each row.
2. Each value that some released runtime rejects (:data:`SELDOM`), one in each row, so that its
   rejection hides no other pair.
3. The remaining pairs, and combinations in which one feature hides another (:data:`HIDING`): one
   pair in each row, with plain values otherwise.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conformance.case.call import Call
from conformance.case.case import MAX_TITLE, Case, misfits
from conformance.case.contracts import is_excluded
from conformance.case.corpus import shipped_files
from conformance.case.features import BY_NAME, FEATURES, RULES, features_of
from conformance.case.load import load_file
from conformance.case.tensors import ShapeError, steps_of
from conformance.case.wording import word_of_each
from conformance.maintain.telling_values import is_sensitive, sensitive

#: The dtypes of every row; some rows have bfloat16 too, so that each value occurs with it.
DTYPES: Final = ("float32", "float16")
#: Features of a row; dtype is an axis of every row instead.
ROW: Final = tuple(feature for feature in FEATURES if feature.name != "dtype")
#: The theme that gets new rows.
THEME: Final = "pairs"
#: The largest number of values in a row that are not plain. A larger one makes rows hard to read,
#: a smaller one makes too many rows.
MOST: Final = 9
#: The number of candidates for each row.
TRIES: Final = 24
#: The number of values tried for a candidate before it is abandoned.
PATIENCE: Final = 400
#: The features that most rules concern; their values are chosen first.
SHAPING: Final = ("phase", "cache", "key_value", "presents", "causal", "window", "dims")

#: Values that released runtimes reject, as (feature, value).
SELDOM: Final = (
    ("presents", "one"),
    ("key_value", "omitted"),
    ("qk_norm", "given"),
    ("quantised", "float8_tensor"),
    ("quantised", "float8_channel"),
    ("cache", "sliding_window"),
)

_ROTARY: Final = BY_NAME["rotary"].values[1:]
_QUANTISED: Final = BY_NAME["quantised"].values[1:]

#: Combinations of values that hide other features, so their row has no other pairs; and why.
HIDING: Final[tuple[tuple[dict[str, tuple[str, ...]], str], ...]] = (
    ({"phase": ("decode",), "causal": ("bidirectional",)}, "the last token sees all anyway"),
    ({"phase": ("prefill",), "key_value": ("zero_valued",)}, "everything is zero"),
    (
        {"phase": ("prefill",), "quantised": _QUANTISED},
        "a prompt may attend to its keys before they are rounded",
    ),
    ({"phase": ("chunked_prefill",), "batch": ("more",)}, "the documentation excludes it"),
    ({"head_size": ("8", "40"), "rotary": _ROTARY}, "ONNX Runtime wants a multiple of 16"),
    (
        {"head_size": ("16",), "rotary": ("partial_half_split", "partial_interleaved")},
        "ONNX Runtime wants 16 elements or more to turn",
    ),
    (
        {"cache": ("sliding_window",), "phase": ("prefill",), "lengths": ("ragged",)},
        "ONNX Runtime refuses it",
    ),
    (
        {
            "cache": ("sliding_window",),
            "quantised": ("int4_tensor", "int4_channel"),
            "head_size": ("16", "8", "40", "80"),
        },
        "ONNX Runtime wants a multiple of 32",
    ),
    ({"quantised": _QUANTISED, "softcap": ("given",)}, "the cap levels what the scales do"),
    ({"quantised": _QUANTISED, "sink": ("smooth_softmax",)}, "one of the two drowns the other"),
    ({"quantised": _QUANTISED, "key_value": ("zero_valued",)}, "zero is zero at every scale"),
    ({"cache": ("sliding_window",), "key_value": ("zero_length",)}, "refused"),
    ({"cache": ("sliding_window",), "presents": ("none", "one")}, "refused"),
    ({"cache": ("sliding_window",), "output_qk": BY_NAME["output_qk"].values[1:]}, "refused"),
    ({"query_seqlens": ("idle",), "batch": ("one",)}, "nothing is computed"),
    (
        {"quantised": _QUANTISED, "presents": ("none", "one")},
        "ONNX Runtime refuses it",
    ),
)

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]
#: A row, and the pairs that it is the first to have.
MadeRow = tuple[Row, list[Pair]]


def pairs_of(row: Mapping[str, str | None]) -> Iterator[Pair]:
    """The pairs of values of a row, in the order of the features, without values like `other`."""
    there = [
        (feature.name, value)
        for feature in FEATURES
        if (value := row.get(feature.name)) in feature.paired
    ]
    yield from itertools.combinations(there, 2)


def legal_pairs() -> list[Pair]:
    """All pairs of values that no rule forbids."""
    found = []
    for one, other in itertools.combinations(FEATURES, 2):
        for pair in itertools.product(one.paired, other.paired):
            row = {one.name: pair[0], other.name: pair[1]}
            if not any(rule.forbids(row) for rule in RULES):
                found.append(((one.name, pair[0]), (other.name, pair[1])))
    return found


def call_of(row: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a small call with the row's values, in the order of the file."""
    phase, kind, key_value = row["phase"], row["cache"], row["key_value"]
    batch = 2 if row["batch"] == "more" else 1
    size = int(row["head_size"])
    fields: dict[str, Any] = {"batch_size": batch}
    borrowed = key_value in ("zero_length", "omitted")
    alike = row["dims"] == "static"  # all calls of a loop need the same shapes
    past, sequence = {
        "prefill": (9 if borrowed else 0, 9),
        "decode": (10, 1),
        "chunked_prefill": (8, 3),
        "loop": (7, 1) if borrowed or alike or key_value == "zero_valued" else (0, 5),
    }[phase]
    total = past if borrowed else past + sequence
    room = 0  # for the padding of chunks
    if row["query_seqlens"] != "none":
        chunks = _chunks_of(row, past, sequence, batch)
        fields |= chunks.fields
        total, room = chunks.longest, chunks.room
    elif phase == "loop":
        fields["loop"] = [sequence, 1, 1]
    elif sequence != 1:
        fields["sequence_length"] = sequence
    if past and row["query_seqlens"] == "none":
        fields["past_sequence_length"] = past
    if row["lengths"] == "ragged" and row["query_seqlens"] == "none":
        shortest = 1 if total == sequence else sequence
        fields["total_sequence_lengths"] = [total, max(total - 4, shortest)]
    if phase == "loop" and not borrowed and row["query_seqlens"] == "none":
        total += 2
    window = {"none": None, "shorter": 3, "whole": total, "longer": total + 2}[row["window"]]
    if kind == "concatenated":
        fields["cache"] = kind
    elif kind == "sliding_window":
        fields["max_sequence_length"] = (window or 0) + 1
        fields["sliding_window_cache"] = 1
    elif kind != "none":
        fields["max_sequence_length"] = max(total + 3, room)
        if kind == "shared_buffer":
            fields["shared_buffer"] = True
    heads = {"gqa": (4, 2), "mha": (2, 2), "mqa": (3, 1)}[row["heads"]]
    fields |= {"num_heads": heads[0], "kv_num_heads": heads[1], "head_size": size}
    if key_value != "new":
        fields["key_value"] = key_value
    if row["presents"] != "both":
        fields["presents"] = {"none": "none", "one": "key_only"}[row["presents"]]
    if row["rotary"] != "none":
        fields["rotary"] = row["rotary"].removeprefix("partial_")
        if row["rotary"].startswith("partial_"):  # a multiple of 16 where the head has room
            fields["rotary_dim"] = size // 2 // 16 * 16 or size // 2
    if row["position_ids"] == "given":
        fields["position_ids"] = True
    if row["qk_norm"] == "given":
        fields["qk_norm"] = True
    if row["causal"] == "bidirectional":
        fields["causal"] = 0
    if window is not None:
        fields["local_window_size"] = window
    if row["scale"] == "given":
        fields["scale"] = round(2 * size**-0.5, 3)
    if row["softcap"] == "given":
        fields["softcap"] = 1.0
    if row["attention_bias"] != "none":
        fields["attention_bias"] = row["attention_bias"]
    if row["sink"] == "head_sink":
        fields["head_sink"] = True
    elif row["sink"] == "smooth_softmax":
        fields["smooth_softmax"] = 1
    if row["output_qk"] != "none":
        fields["qk_output"] = {"before_softmax": 1, "after_softmax": 2}[row["output_qk"]]
    if row["quantised"] != "none":
        number, _, each = row["quantised"].partition("_")
        kind_of_scale = {"tensor": "PER_TENSOR", "channel": "PER_CHANNEL"}[each]
        fields |= {
            "cache_dtype": {"int8": "int8", "int4": "uint8", "float8": "float8e4m3fn"}[number],
            "k_quant_type": kind_of_scale,
            "v_quant_type": kind_of_scale,
            "kv_cache_bit_width": 4 if number == "int4" else 8,
        }
        if values := _values(row):
            fields["inputs"] = values
    if alike:
        fields["dims"] = "static"
    if hidden := _insensitive_to(row):
        fields["insensitive_to"] = hidden
    return fields


#: The query tokens of two sequences in each call with query_seqlens, by its phase and value; a
#: second row is that of a ragged batch, where it differs.
_COUNTS: Final[Mapping[tuple[str, str], Sequence[Sequence[tuple[int, int]]]]] = {
    ("prefill", "unpadded"): ([(9, 9)],),
    ("prefill", "padded"): ([(6, 6)], [(6, 3)]),
    ("decode", "unpadded"): ([(1, 1)],),
    ("decode", "idle"): ([(1, 0)],),
    ("chunked_prefill", "unpadded"): ([(3, 3)],),
    ("chunked_prefill", "padded"): ([(2, 2)], [(2, 1)]),
    ("chunked_prefill", "idle"): ([(2, 0)],),
    ("loop", "unpadded"): ([(3, 3), (3, 3), (3, 3)],),
    ("loop", "padded"): ([(4, 4), (2, 2), (1, 1)], [(4, 3), (2, 1), (1, 2)]),
    ("loop", "idle"): ([(4, 4), (0, 2), (2, 0)], [(4, 3), (2, 0), (1, 1)]),
}


@dataclass(frozen=True)
class _Chunks:
    """The fields of a call with query_seqlens, its longest length, and the rows that it needs."""

    fields: dict[str, Any]
    longest: int
    room: int


def _chunks_of(row: Mapping[str, str], past: int, sequence: int, batch: int) -> _Chunks:
    """The chunks of a row; ``past`` and ``sequence`` are those of a call without query_seqlens."""
    phase, ragged = row["phase"], row["lengths"] == "ragged"
    alternatives = _COUNTS[phase, row["query_seqlens"]]
    counts = [each[:batch] for each in alternatives[-1 if ragged else 0]]
    if batch == 1 and row["query_seqlens"] == "idle":
        counts = [(0,)]
    if phase == "loop":
        sequence = max(map(max, counts))
        starts = [past] * batch
    else:
        longest = past + max(counts[0])
        lengths = [longest, longest - 4][:batch] if ragged and past else [longest] * batch
        lengths = list(counts[0]) if not past else lengths
        starts = [length - count for length, count in zip(lengths, counts[0], strict=True)]
    fields: dict[str, Any] = {}
    if phase == "loop":
        fields["loop"] = [sequence] * len(counts)
    elif sequence != 1:
        fields["sequence_length"] = sequence
    if max(starts):
        fields["past_sequence_length"] = max(starts)
    ends = [start + count for start, count in zip(starts, counts[0], strict=True)]
    if len(set(starts)) > 1:
        fields["total_sequence_lengths"] = ends
    fields["query_seqlens"] = (
        [list(each) for each in counts] if phase == "loop" else list(counts[0])
    )
    room = max(starts) + sequence
    for each in counts[1:]:
        room = max(room, max(ends) + sequence)
        ends = [end + count for end, count in zip(ends, each, strict=True)]
    return _Chunks(fields, max(ends), room)


def _values(row: Mapping[str, str]) -> dict[str, Any]:
    """Values of a quantised call that show its scales and that a prefill need not round."""
    if row["phase"] == "prefill":
        grid = {"values": {"low": -3.0, "high": 3.0, "step": 1.0}}
        scale = {"values": {"low": 0.5, "high": 1.0, "step": 0.5}}
        query = {"values": {"kind": "marked" if row["qk_norm"] == "given" else "uniform"}}
        return {"query": query, "key": grid, "value": grid, "k_scale": scale, "v_scale": scale}
    if row["quantised"].endswith("_tensor"):
        return {}
    high = 0.2 if row["quantised"] == "int4_channel" else 0.02
    apart = {"values": {"low": high / 10, "high": high}}
    return {"k_scale": apart, "v_scale": apart}


def _insensitive_to(row: Mapping[str, str]) -> list[str]:
    """Features of the row that must not change its result."""
    hidden = []
    if row["window"] in ("whole", "longer"):
        hidden.append("window")
        if row["cache"] == "sliding_window":
            hidden.append("sliding_window_cache")
    if row["phase"] == "prefill" and row["key_value"] == "zero_valued":
        hidden.append("causal")
    if row["key_value"] == "zero_valued" and row["quantised"] != "none":
        hidden.append("quantisation")
    if row["position_ids"] == "given" and _moves_together(row):
        hidden.append("position_ids")
    return hidden


def _moves_together(row: Mapping[str, str]) -> bool:
    """Whether queries and keys move by the same distance and no output shows the keys."""
    unseen = row["presents"] == "none" or row["key_value"] == "zero_valued"
    return row["phase"] == "prefill" and row["key_value"] != "zero_length" and unseen


def possible(row: Mapping[str, str]) -> bool:
    """Whether there is a call with exactly the values of a complete row."""
    if any(rule.forbids(row) for rule in RULES):
        return False
    fields = call_of(row)
    call = Call.model_validate({k: v for k, v in fields.items() if k in Call.model_fields})
    try:
        found = features_of(call, steps_of(call))
    except ShapeError:
        return False
    wrong = {name: found[name] for name in row if found[name] != row[name]}
    assert not wrong, f"the call of {dict(row)} has the features {wrong}"
    return not any(misfits(call, "computes"))


class _Maker:
    """Makes rows until every one of ``pairs`` is in a row."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.random = random.Random(0)
        self.left = dict.fromkeys(pairs)

    def rows(self) -> Iterator[tuple[Row, list[Pair]]]:
        """Each row with the pairs that it is the first to have."""
        hiding = tuple(values for values, _ in HIDING)
        for value in (None, *SELDOM):
            yield from self.stage(set(SELDOM) - {value}, hiding, MOST, value)
        yield from self.stage(set(), (), 0, None)
        assert not self.left, f"no row can have {list(self.left)}"

    def stage(
        self,
        without: set[tuple[str, str]],
        hiding: tuple[dict[str, tuple[str, ...]], ...],
        most: int,
        wanted: tuple[str, str] | None,
    ) -> Iterator[tuple[Row, list[Pair]]]:
        """Rows without the values ``without``, for all missing pairs that such rows can have."""
        for pair in list(self.left):
            if pair not in self.left or (wanted and wanted not in pair):
                continue
            made = self.tried(pair, without, hiding, most)
            if not made:
                continue
            best = max(made, key=self.gain)
            new = [found for found in pairs_of(best) if found in self.left]
            for found in new:
                del self.left[found]
            yield best, new

    def tried(
        self,
        pair: Pair,
        without: set[tuple[str, str]],
        hiding: tuple[dict[str, tuple[str, ...]], ...],
        most: int,
    ) -> list[Row]:
        """Candidate rows with ``pair``; a single pair with a quantised cache prefers a past."""
        if most:
            found = [self.row(dict(pair), without, hiding, most) for _ in range(TRIES)]
        else:
            start = dict(pair)
            past = {"phase": "decode", **start} if "quantised" in start else start
            found = [self.row(past, without, hiding, most)]
            if past != start and found == [None]:
                found = [self.row(start, without, hiding, most)]
        return [row for row in found if row is not None]

    def gain(self, row: Row) -> int:
        return sum(pair in self.left for pair in pairs_of(row))

    def row(
        self,
        start: Row,
        without: set[tuple[str, str]],
        hiding: tuple[dict[str, tuple[str, ...]], ...],
        most: int,
    ) -> Row | None:
        """A row that extends ``start`` by the values with the most missing pairs."""
        order = [feature for feature in ROW if feature.name not in start]
        if most:
            self.random.shuffle(order)
            order.sort(key=lambda feature: feature.name not in SHAPING)
        row = {**start}
        steps = itertools.count()

        def allowed() -> bool:
            return (
                not without & row.items()
                and not any(rule.forbids(row) for rule in RULES)
                and not any(
                    all(row.get(name) in values for name, values in hidden.items())
                    for hidden in hiding
                )
            )

        def fill(index: int) -> bool:
            if index == len(order):
                return possible(row)
            feature = order[index]
            full = sum(BY_NAME[name].values[0] != value for name, value in row.items()) >= most

            def worth(value: str) -> tuple[bool, int]:
                plain = value == feature.values[0]
                others = ((feature.name, value), *row.items())
                gained = sum(
                    (others[0], other) in self.left or (other, others[0]) in self.left
                    for other in others[1:]
                )
                return (plain if full else False, gained)

            for value in sorted(feature.paired, key=worth, reverse=True):
                if most and next(steps) > PATIENCE:
                    return False
                row[feature.name] = value
                if allowed() and fill(index + 1):
                    return True
                row.pop(feature.name)
            return False

        if not allowed() or not fill(0):
            return None
        return {feature.name: row[feature.name] for feature in ROW}


def rows_for(there: Collection[Pair]) -> list[Row]:
    """Rows that have all legal pairs beside those that are ``there``."""
    goals = [pair for pair in legal_pairs() if pair not in there]
    of_rows = [pair for pair in goals if all(name != "dtype" for name, _ in pair)]
    return [row for row, _ in _Maker(of_rows).rows()]


def pairs_in(cases: Iterable[Case]) -> set[Pair]:
    """The pairs that calls of the cases have."""
    return {pair for case in cases for pair in pairs_of(features_of(case.call, case.steps))}


#: The words for values in the name of a row, if they differ from the values.
WORDS: Final = {
    ("phase", "prefill"): "prompt",
    ("phase", "decode"): "decode",
    ("phase", "chunked_prefill"): "several",
    ("cache", "concatenated"): "",
    ("cache", "shared_buffer"): "shared",
    ("cache", "sliding_window"): "sliding",
    ("key_value", "zero_length"): "borrowed",
    ("key_value", "zero_valued"): "zeros",
    ("presents", "none"): "no_present",
    ("presents", "one"): "one_present",
    ("batch", "more"): "batch",
    ("position_ids", "given"): "positions",
    ("qk_norm", "given"): "qk_norm",
    ("window", "shorter"): "window",
    ("window", "whole"): "whole_window",
    ("window", "longer"): "long_window",
    ("scale", "given"): "scale",
    ("softcap", "given"): "softcap",
    ("attention_bias", "full"): "bias",
    ("attention_bias", "one_batch"): "one_batch_bias",
    ("attention_bias", "one_head"): "one_head_bias",
    ("attention_bias", "one_batch_one_head"): "one_row_bias",
    ("sink", "smooth_softmax"): "smooth",
    ("output_qk", "before_softmax"): "scores",
    ("output_qk", "after_softmax"): "weights",
    ("dims", "static"): "static_dims",
    ("query_seqlens", "unpadded"): "chunks",
    ("query_seqlens", "padded"): "padded_chunks",
    ("query_seqlens", "idle"): "idle_chunks",
}


def name_of(row: Row) -> str:
    """The row's name: a word for its phase and for each value that is not plain."""
    words = []
    for feature in ROW:
        value = row[feature.name]
        if feature.name == "head_size":
            words += [f"d{value}"] * (value != feature.values[0])
        elif feature.name == "phase" or value != feature.values[0]:
            words.append(WORDS.get((feature.name, value), value))
    return "_".join(filter(None, words))


#: A call with default values.
PLAIN: Final = Call()
#: Features that a title may name beside phase and cache, the most telling first, and how many.
_TELLING: Final = (
    *("key_value", "quantised", "query_seqlens", "presents", "qk_norm", "causal", "window"),
    *("rotary", "lengths", "attention_bias", "sink", "softcap", "output_qk", "position_ids"),
    *("scale", "heads", "batch", "head_size", "dims"),
)
_MAX_FEATURES: Final = 3


def title_of(row: Row, call: Call, taken: Collection[str]) -> str:
    """The phase with its lengths, the cache, and the features that tell most, as many as fit:
    ``97 tokens on a past of 4034, shared buffer, int8 cache``; with a number if that is taken."""
    words = dict(word_of_each(row))
    new, past = call.sequence_length, call.past_sequence_length
    with_lengths = {
        "prefill": f"Prompt of {new} token{'s' if new != 1 else ''}",
        "decode": f"One token on a past of {past}",
        "chunked_prefill": f"{new} tokens on a past of {past}",
    }
    phase = with_lengths.get(row["phase"], "Generation loop")
    head = [phase, *([words["cache"]] if words.get("cache") else [])]
    telling = [words[name] for name in _TELLING if name in words][:_MAX_FEATURES]
    while telling and len(", ".join([*head, *telling])) > MAX_TITLE - len(" (999)"):
        telling.pop()
    plain = ", ".join([*head, *telling])
    numbered = (f"{plain} ({number})" for number in itertools.count(2))
    return next(title for title in itertools.chain([plain], numbered) if title not in taken)


def line_of(row: Row, titles: set[str]) -> str:
    """The row as a line of a case file, with values that show all its features, and a title that is
    added to ``titles``."""
    fields = sensitive(call_of(row), DTYPES)
    if fields is None:
        raise SystemExit(f"No values make {name_of(row)} sensitive; add the combination to HIDING.")
    more = row["quantised"] == "none" and not is_excluded(row) and is_sensitive(fields, "bfloat16")
    dtypes = [*DTYPES, "bfloat16"] if more else [*DTYPES]
    call = Call.model_validate({name: fields[name] for name in fields.keys() & Call.model_fields})
    title = title_of(row, call, titles)
    titles.add(title)
    different = {name: fields[name] for name in fields if fields[name] != getattr(PLAIN, name, ...)}
    entry = {"name": name_of(row), "title": title, **different, "matrix": {"dtype": dtypes}}
    return json.dumps(entry)


def main() -> None:
    """Add rows for the pairs that no row has."""
    file = shipped_files()[THEME]
    cases = load_file(file)
    titles = {case.title for case in cases}
    lines = [f"  - {line_of(row, titles)}" for row in rows_for(pairs_in(cases))]
    if lines:
        text = file.read_text(encoding="utf-8").rstrip("\n")
        file.write_text("\n".join([text, *lines, ""]), encoding="utf-8")
    print(f"{len(lines)} rows added to {file}")


if __name__ == "__main__":
    main()
