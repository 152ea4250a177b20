"""What is known of families of models besides their config.json: ``families.yaml``, a line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from conformance.base.yaml_source import read_yaml


@dataclass(frozen=True)
class Family:
    """The attention of a family.

    ``style``: its rotary embedding turns the ``halves`` of a head, or ``pairs`` of neighbours; ""
    if it has none. ``rotated``: the layers that rotate, ``all`` or those with a ``sliding`` window.
    ``norm``: queries and keys are normalised ``before`` or ``after`` the rotation; ``either``: the
    norm has no weights, so that the order is the same; "" without a norm. ``norm_if`` is the
    setting that switches the norm on. ``scale`` multiplies the product of query and key: ``head``
    is 1 / sqrt(head size), and the other formulas are in :mod:`conformance.model.config.layers`.
    ``sink``: ``all`` layers, or those with a ``sliding`` window, have a score of no token in each
    head. ``first_is_global``: of each period of layers the first one has no window, and not the
    last one. ``mixer`` is what its layers have instead of this operator's attention, and ``linear``
    what its layers of ``linear_attention`` have. ``settings`` are those that its config.json may
    leave out. ``is_known``: it is in the table; nothing is known of the style, norms and sinks of
    another one.
    """

    style: str = "halves"
    rotated: str = "all"
    norm: str | None = ""
    norm_if: str = ""
    scale: str = "head"
    sink: str | None = ""
    first_is_global: bool = False
    mixer: str = ""
    linear: str = "linear attention"
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_known: bool = True


#: By the ``model_type`` of config.json.
FAMILIES: Final[Mapping[str, Family]] = {
    name: Family(**facts)
    for name, facts in read_yaml(Path(__file__).with_name("families.yaml")).data.items()
}


def family_of(model_type: str) -> Family:
    """The family with this ``model_type``."""
    unknown = Family("", norm=None, sink=None, is_known=False)
    return FAMILIES.get(model_type) or FAMILIES.get(f"{model_type}_text", unknown)
