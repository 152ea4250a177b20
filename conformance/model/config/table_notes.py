"""Compares a graph's rotary tables with the angles that config.json gives a layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from conformance.base.array_types import Array
from conformance.model.config.frequencies import Rotation, plain
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
    """What tables contradict, as a sentence with ``{layers}`` and ``{have}`` to be filled in.

    ``width`` is the number of elements that the graph rotates. ``multiplied`` is the graph's scale
    of products over that of the configuration, None if it is not known.
    """
    rotation = layer.rotation
    widths = {2 * each.cos.shape[1] for each in tables}
    if rotation is None or widths != {width} or len(rotation.frequencies) * 2 != width:
        return
    short, long = np.array(rotation.frequencies), np.array(rotation.long_frequencies)
    wanted = [long if long.size and each.is_long else short for each in tables]
    limit, ways = rotation.original if len(tables) == 1 else None, [wanted]
    if long.size:
        is_known = len(tables) == 2 and tables[0].is_long is not None
        swapped = [short if each is long else long for each in wanted]
        ways += [] if is_known else [swapped, [short, long]]
        are_unlike = not np.allclose(short, long, rtol=_PART)
        if is_known and are_unlike and all(map(_agree, tables, swapped)):
            yield (
                f"config.json has other frequencies beyond {rotation.original} tokens, and those of"
                " {layers} are swapped: the long factors up to there, and the short ones beyond."
            )
            return
    if any(all(map(_agree, tables, way, [limit] * len(tables))) for way in ways):
        yield from _on_factor(rotation, tables, multiplied)
    else:
        wrong = next(
            each for each, one in zip(tables, wanted, strict=True) if not _agree(each, one)
        )
        yield _difference(layer, rotation, wrong, width)


def _on_factor(
    rotation: Rotation, tables: Sequence[RotaryTables], multiplied: float | None
) -> Iterator[str]:
    """The factor of cosines and sines, which may be in the scale of the products instead."""
    for has in [float(np.hypot(each.cos[1], each.sin[1]).mean()) for each in tables]:
        ways = rotation.factor, rotation.factor / (multiplied or 1) ** 0.5
        if multiplied and not any(math.isclose(has, way, rel_tol=_PART) for way in ways):
            of = f", the attention factor of {rotation.scaling}" if rotation.factor != 1 else ""
            yield (
                f"config.json multiplies rotary tables by {rotation.factor:.4g}{of}, and those of"
                f" {{layers}} by {has:.4g}."
            )
            return


def _agree(tables: RotaryTables, frequencies: Array, limit: int | None = None) -> bool:
    """Whether the tables turn each pair by its frequency, up to a ``limit`` of rows.

    Each pair is compared at a row at which it has turned by about 1 radian since the first one,
    which may have any position: only distances count.
    """
    last = max(min(len(tables.cos), limit or len(tables.cos)) - 1, 1)
    with np.errstate(divide="ignore"):
        rows = np.clip(np.floor(1 / frequencies), 1, last).astype(np.int64)
    pairs = np.arange(frequencies.size)
    turned = np.arctan2(tables.sin[rows, pairs], tables.cos[rows, pairs])
    apart = turned - np.arctan2(tables.sin[0], tables.cos[0]) - rows * frequencies
    apart = np.abs((apart + math.pi) % (2 * math.pi) - math.pi)
    return bool((apart <= _ANGLE + _PART * rows * frequencies).all())


def _difference(layer: ExpectedLayer, rotation: Rotation, tables: RotaryTables, width: int) -> str:
    """A sentence on how the tables differ from what is wanted."""
    unscaled = plain(layer.base or 1.0, width)
    if rotation.scaling and _agree(tables, unscaled):
        return (
            f"config.json scales rotary positions by {rotation.scaling}, and the tables of"
            " {layers} are not scaled."
        )
    angles = np.arctan2(tables.sin[:2], tables.cos[:2])
    first, last = ((angles[1, at] - angles[0, at]) % (2 * math.pi) for at in (0, -1))
    if width > 2 and 0 < last < first:
        base = (last / first) ** (-width / (width - 2))
        if _agree(tables, plain(base, width)):
            return (
                f"config.json has a base of the rotary tables of {layer.base:g}, and {{layers}}"
                f" {{have}} {base:.3g}."
            )
    scaled = f" scaled by {rotation.scaling}" if rotation.scaling else ""
    return (
        f"config.json has a base of the rotary tables of {layer.base:g}{scaled}, and the tables of"
        " {layers} have other frequencies."
    )
