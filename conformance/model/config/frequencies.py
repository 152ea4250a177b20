"""The frequencies of a rotary embedding, by the forms of scaling that config.json has for them.

The forms and their settings are those of Transformers 5.24.0 (`modeling_rope_utils.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from conformance.base.array_types import Array
from conformance.model.config.settings import MOST, Settings, integer, number, numbers


@dataclass(frozen=True)
class Rotation:
    """What the rotary tables of a layer contain.

    ``frequencies``: the angle of position 1 for each pair of elements, in radians. Cosines and
    sines are multiplied by ``factor``. With ``long_frequencies`` the tables are others if there
    are more than ``original`` tokens. ``scaling`` is the form in words, ``8 (linear)``; empty if
    there is none.
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0
    scaling: str = ""
    original: int | None = None
    long_frequencies: tuple[float, ...] = ()


def rotation_of(settings: Settings, base: float, width: int, head_size: int) -> Rotation | None:
    """The rotation by ``settings``, which has those of its form and those of the model.

    ``width`` is the number of elements that rotate, of a head of ``head_size``. None if the form is
    not known, or if its settings have no meaning.
    """
    form = form_of(settings)
    if form not in _FORMS or not 2 <= width <= head_size <= MOST or base <= 0:
        return None
    try:
        with np.errstate(all="ignore"):
            made = _FORMS[form](settings, base, width, head_size)
    except (ArithmeticError, TypeError, ValueError):
        return None
    every = [*made.frequencies, *made.long_frequencies, made.factor]
    return made if np.isfinite(every).all() else None


def form_of(settings: Settings) -> str:
    """The form of scaling that the settings name, ``default`` if they name none."""
    form = str(settings.get("rope_type") or settings.get("type") or "default")
    return {"su": "longrope", "mrope": "default", "axial": "default"}.get(form, form)


def _needed(settings: Settings, name: str) -> float:
    found = number(settings, name)
    if found is None:
        raise ValueError(name)
    return found


def plain(base: float, width: int) -> Array:
    """The frequencies of a base, for ``width`` elements that rotate."""
    return np.asarray(base ** (-np.arange(0, width, 2) / width), np.float64)


def _told(settings: Settings, factor: float | None = None) -> str:
    by = number(settings, "factor") or factor
    return f"{by:g} ({form_of(settings)})" if by else form_of(settings)


def _context(settings: Settings) -> float:
    """The number of tokens that the model was trained with before its positions were scaled."""
    found = number(settings, "original") or number(settings, "context")
    if found is None:
        raise ValueError("original")
    return found


def _default(settings: Settings, base: float, width: int, head_size: int) -> Rotation:
    return Rotation(tuple(plain(base, width)))


def _linear(settings: Settings, base: float, width: int, head_size: int) -> Rotation:
    by = _needed(settings, "factor")
    return Rotation(tuple(plain(base, width) / by), scaling=_told(settings))


def _dynamic(settings: Settings, base: float, width: int, head_size: int) -> Rotation:
    """Up to the context of the model nothing is scaled, unless there is an ``alpha``."""
    alpha = number(settings, "alpha") or 1.0
    frequencies = plain(base * alpha ** (width / (width - 2)), width)
    scaling = f"{alpha:g} (dynamic, alpha)" if alpha != 1 else ""
    return Rotation(tuple(frequencies), scaling=scaling)


def _proportional(settings: Settings, base: float, width: int, head_size: int) -> Rotation:
    """The exponents are those of a whole head, and pairs beyond ``width`` do not turn."""
    by = number(settings, "factor") or 1.0
    turning = plain(base, head_size) / by
    turning[width // 2 :] = 0
    return Rotation(tuple(turning), scaling=_told(settings) if by != 1 else "")


def _llama3(settings: Settings, base: float, width: int, head_size: int) -> Rotation:
    every, context = plain(base, width), _context(settings)
    factor = _needed(settings, "factor")
    low, high = (_needed(settings, f"{which}_freq_factor") for which in ("low", "high"))
    turns = context * every / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return Rotation(tuple(every * (kept + (1 - kept) / factor)), scaling=_told(settings))


def _yarn(settings: Settings, base: float, width: int, head_size: int) -> Rotation:
    every, original = plain(base, width), _context(settings)
    factor = number(settings, "factor") or _needed(settings, "context") / original

    def pair(turns: float) -> float:
        """The pair that makes so many turns within the original context."""
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = pair(number(settings, "beta_fast") or 32.0)
    high = pair(number(settings, "beta_slow") or 1.0)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    scaled = np.clip((np.arange(every.size) - low) / (high - low or 0.001), 0, 1)
    return Rotation(
        tuple(every * (scaled / factor + 1 - scaled)),
        _yarn_factor(settings, factor),
        _told(settings, factor),
    )


def _yarn_factor(settings: Settings, factor: float) -> float:
    def growth(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    weight, all_weight = (number(settings, name) for name in ("mscale", "mscale_all_dim"))
    usual = growth(weight) / growth(all_weight) if weight and all_weight else growth(1)
    return number(settings, "attention_factor") or usual


def _longrope(settings: Settings, base: float, width: int, head_size: int) -> Rotation:
    every, original = plain(base, width), _context(settings)
    short, long = (numbers(settings, f"{which}_factor", every.size) for which in ("short", "long"))
    if short is None or long is None:
        raise ValueError("short_factor")
    by = number(settings, "factor") or _needed(settings, "context") / original
    usual = math.sqrt(1 + math.log(by) / math.log(original)) if by > 1 else 1.0
    factor = number(settings, "attention_factor") or usual
    return Rotation(
        tuple(every / short),
        number(settings, "short_mscale") or factor,
        _told(settings, by),
        integer(settings, "original"),
        tuple(every / long),
    )


_FORMS: Final[dict[str, Callable[[Settings, float, int, int], Rotation]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
