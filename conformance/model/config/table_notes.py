"""Compares a graph's rotary tables with the angles that config.json gives a layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from conformance.base.array_types import Array
from conformance.model.config.frequencies import Rotation
from conformance.model.config.graph_rotation import RotaryTables
from conformance.model.config.layers import ExpectedLayer

#: The largest difference of an angle in radians, and of a frequency and a factor in parts of it,
#: by which tables may differ: those in bfloat16 have 8 bits, and so have frequencies, at times.
_ANGLE, _PART = 0.03, 0.02


def is_still(tables: Sequence[RotaryTables]) -> bool:
    """Whether the tables leave every pair as it is."""
    return bool(tables) and all(np.abs(each.sin[:64]).max() < 1e-3 for each in tables)


def table_contradictions(
    layer: ExpectedLayer, tables: Sequence[RotaryTables], width: int, multiplied: float | None
) -> Iterator[str]:
    """What tables contradict, as sentences with ``{layers}`` and ``{have}`` to be filled in.

    ``width`` is the number of elements that the graph rotates. ``multiplied`` is the graph's scale
    of products over that of the configuration, None if it is not known.
    """
    rotation = layer.rotation
    if rotation is None or not tables or len(rotation.frequencies) * 2 != width:
        return
    if any(each.cos.shape[1] * 2 != width for each in tables):
        return
    short, long = np.array(rotation.frequencies), np.array(rotation.long_frequencies)
    if not long.size:
        for each in tables:
            if not _agree(each, short, None):
                yield _difference(layer, rotation, each, short, width)
                return
    elif len(tables) == 2:
        by_length = sorted(tables, key=lambda each: bool(each.is_long))
        if tables[0].is_long is None and _agree(tables[0], long, None):
            by_length.reverse()
        swapped = _agree(by_length[0], long, None) and _agree(by_length[1], short, None)
        if swapped and not np.allclose(short, long, rtol=_PART):
            yield (
                f"config.json has other frequencies beyond {rotation.original} tokens, and those of"
                " {layers} are swapped: the long factors up to there, and the short ones beyond."
            )
            return
        if not _agree(by_length[0], short, None) or not _agree(by_length[1], long, None):
            wrong = by_length[0] if not _agree(by_length[0], short, None) else by_length[1]
            wanted = short if wrong is by_length[0] else long
            yield _difference(layer, rotation, wrong, wanted, width)
            return
    elif not any(_agree(tables[0], each, rotation.original) for each in (short, long)):
        yield _difference(layer, rotation, tables[0], short, width)
        return
    yield from _on_factor(rotation, tables, multiplied)


def _on_factor(
    rotation: Rotation, tables: Sequence[RotaryTables], multiplied: float | None
) -> Iterator[str]:
    """The factor of cosines and sines, which may be in the scale of the products instead."""
    wanted = {
        rotation.factor,
        rotation.long_factor if rotation.long_frequencies else rotation.factor,
    }
    for each in tables:
        has = float(np.hypot(each.cos[1], each.sin[1]).mean())
        if multiplied is None or any(math.isclose(has, one, rel_tol=_PART) for one in wanted):
            continue
        in_scale = [(has / factor) ** 2 * multiplied for factor in wanted]
        if not any(math.isclose(one, 1, rel_tol=2 * _PART) for one in in_scale):
            of = f", the attention factor of {rotation.scaling}" if rotation.scaling else ""
            yield (
                f"config.json multiplies rotary tables by {rotation.factor:.4g}{of}, and those of"
                f" {{layers}} by {has:.4g}."
            )
            return


def _rows(tables: RotaryTables, frequencies: Array, limit: int | None) -> Array:
    """For each pair a row at which it has turned by about 1 radian, below a ``limit`` of rows."""
    last = min(len(tables.cos), limit or len(tables.cos)) - 1
    with np.errstate(divide="ignore"):
        return np.clip(np.floor(1 / frequencies), 1, max(last, 1)).astype(np.int64)


def _agree(tables: RotaryTables, frequencies: Array, limit: int | None) -> bool:
    """Whether the tables turn each pair by its frequency."""
    rows = _rows(tables, frequencies, limit)
    pairs = np.arange(frequencies.size)
    angles = np.arctan2(tables.sin[rows, pairs], tables.cos[rows, pairs])
    wanted = rows * frequencies
    apart = np.abs((angles - wanted + math.pi) % (2 * math.pi) - math.pi)
    return bool((apart <= _ANGLE + _PART * wanted).all())


def _difference(
    layer: ExpectedLayer, rotation: Rotation, tables: RotaryTables, wanted: Array, width: int
) -> str:
    """A sentence on how the tables differ from what is wanted."""
    plain = (layer.base or 1.0) ** (-np.arange(0, width, 2) / width)
    if rotation.scaling and _agree(tables, plain, None):
        return (
            f"config.json scales rotary positions by {rotation.scaling}, and the tables of"
            " {layers} are not scaled."
        )
    angle = math.atan2(float(tables.sin[1, -1]), float(tables.cos[1, -1]))
    other = math.atan2(float(tables.sin[1, 0]), float(tables.cos[1, 0]))
    if width > 2 and 0 < angle < 1 and other > 0:
        base = (angle / other) ** (-width / (width - 2))
        if math.isfinite(base) and _agree(tables, base ** (-np.arange(0, width, 2) / width), None):
            return (
                f"config.json has a base of the rotary tables of {layer.base:g}, and {{layers}}"
                f" {{have}} {base:.3g}."
            )
    if not rotation.scaling and 0 < other < 0.9 and _agree(tables, plain * other, None):
        return (
            "config.json does not scale rotary positions, and the tables of {layers} divide them by"
            f" {1 / other:.3g}."
        )
    scaled = f" scaled by {rotation.scaling}" if rotation.scaling else ""
    return (
        f"config.json has a base of the rotary tables of {layer.base:g}{scaled}, and the tables of"
        " {layers} have other frequencies."
    )
