"""Writes groups of nodes as a case file: an entry for each group and a case for each stage."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from conformance.base.yaml_source import yaml_text
from conformance.case.case import MAX_TITLE, misfits
from conformance.case.case_file import FORMAT
from conformance.case.contract import contract_by_features
from conformance.case.steps import steps_of
from conformance.graph.reading import ReadModel
from conformance.model.calls.groups import Group
from conformance.model.calls.stages import NodeCall
from conformance.operator.call import CALL_FIELDS, InputOverride, checked_call
from conformance.operator.features import features_of
from conformance.operator.parts.key_value import BORROWS
from conformance.operator.rules import why_excluded
from conformance.operator.sources import DOCUMENTATION, OMITTED_PRESENTS

#: The contract of a call outside the listed features.
_PLAIN: Final = {
    "basis": "established",
    "source": DOCUMENTATION,
    "why": "An exported model makes this call.",
}
#: That of a call that a case file must not demand.
_EXCLUDED: Final = {**_PLAIN, "demands": "either"}
_STANDARD: Final = {
    "basis": "established",
    "source": "https://onnx.ai/onnx/operators/onnx__Attention.html",
    "why": "An exported model has this node, which computes what a GroupQueryAttention does.",
}
_WITHOUT_PRESENTS: Final = {
    "demands": "rejects",
    "source": OMITTED_PRESENTS,
    "why": "Past and new tokens are joined in the present, so a call without it has no meaning.",
    "mentions": ["present"],
}
_FLAT_SCALES: Final = {
    "demands": "either",
    "source": DOCUMENTATION,
    "why": '"The shapes of the k_scale, v_scale tensors shall be broadcastable to present_key'
    ' shape", which flat ones are not; kernels that index them flat read them right.',
    "mentions": ["k_scale", "v_scale"],
}
_NEGATIVE_SOFTCAP: Final = {
    "demands": "either",
    "source": DOCUMENTATION,
    "why": "The documentation knows no negative softcap. By the formula of the kernels its sign"
    " makes no difference; the kernels use only positive caps.",
    "mentions": ["softcap"],
    "readings": ["negative_softcap_is_none"],
}


def theme_of(model: Path) -> str:
    """The theme of the model's cases: its file's name, or its folder's if the file is `model`."""
    stem = model.stem
    if stem in ("model", "decoder", "decoder_model", "decoder_model_merged"):
        stem = model.resolve().parent.name or stem
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", stem).strip("_") or "model"


def graph_file(model: Path, group: Group) -> str:
    """The name of the file with the graph of a group, which is beside the case file."""
    return f"{theme_of(model)}.{group.name}.onnx"


def case_file_of(
    model: ReadModel, groups: Sequence[Group], stages: Mapping[str, Sequence[NodeCall]]
) -> str:
    """The case file for the model's groups; ``stages`` are those of each group by its name."""
    theme = theme_of(model.path)
    made_by = f" ({model.producer})" if model.producer else ""
    titles: dict[str, int] = {}
    contracts: dict[str, dict[str, Any]] = {}
    entries = [
        {
            **entry_of(group, stages[group.name], contracts, graph_file(model.path, group)),
            "title": _title(group, titles),
        }
        for group in groups
    ]
    data = {
        "format": FORMAT,
        "question": f"Is the attention of {theme}{made_by} computed correctly?",
        "tags": ["model"],
        "cases": entries,
    }
    return yaml_text(data)


def entry_of(
    group: Group, stages: Sequence[NodeCall], known: dict[str, dict[str, Any]], graph: str = ""
) -> dict[str, Any]:
    """The entry of a group, without a title.

    ``known`` has the contracts so far, so that YAML writes each of them once. ``graph`` is the file
    of the group's graph, if it has one.
    """
    head = {"name": group.name, "title": "", "why": f"{group.title}: {group.what}."}
    if group.form.graph:
        of_graph = {"dtype": group.form.fields["dtype"], "contract": _STANDARD}
        of_graph["matrix"] = {"stage": {stage.label: stage.fields for stage in stages}}
        return {**head, "graph": graph, **of_graph}
    return {
        **head,
        **group.form.fields,
        "matrix": {
            "stage": {
                stage.label: {
                    **stage.fields,
                    **_insensitive(group, stage),
                    **_contract({**group.form.fields, **stage.fields}, known),
                }
                for stage in stages
            }
        },
    }


def _insensitive(group: Group, stage: NodeCall) -> dict[str, Any]:
    """The fields which say that a window changes nothing while all tokens fit into it."""
    inside = group.form.window is not None and stage.tokens <= group.form.window
    return {"insensitive_to": ["window"]} if inside else {}


def _title(group: Group, titles: dict[str, int]) -> str:
    """A title that is unique and short enough."""
    full = f"{group.title}: {group.what}"
    for text in (full, f"{group.title}: {group.what.rpartition(',')[0].rpartition(',')[0]}"):
        if len(text) <= MAX_TITLE and text not in titles:
            break
    else:
        text = f"{full[: MAX_TITLE - 6]}…"
        text = f"{text} {len(titles) + 1}" if text in titles else text
    titles[text] = 1
    return text


def _contract(fields: Mapping[str, Any], known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The contract of a call, or no fields if it follows from the call's features."""
    call = checked_call({k: v for k, v in fields.items() if k in CALL_FIELDS})
    joined = call.past_sequence_length and call.key_value not in BORROWS
    scale = call.inputs.get("k_scale")
    contract: Mapping[str, Any]
    if call.presents == "none" and joined:
        contract = _WITHOUT_PRESENTS
    elif isinstance(scale, InputOverride) and call.k_quant_type == "PER_CHANNEL":
        contract = _FLAT_SCALES
    elif (call.softcap or 0.0) < 0:
        contract = _NEGATIVE_SOFTCAP
    elif any(misfits(call, "computes")) or why_excluded(
        features := features_of(call, steps_of(call))
    ):
        contract = _EXCLUDED
    elif contract_by_features(features) is None:
        contract = _PLAIN
    else:
        return {}
    return {"contract": known.setdefault(json.dumps(contract), {**contract})}
