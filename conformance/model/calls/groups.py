"""Groups of nodes with the same call, and their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from conformance.base.explain import reason_of
from conformance.graph.nodes import AttentionNode
from conformance.graph.reading import ModelError
from conformance.model.calls.forms import Form, form_of
from conformance.model.config.configuration import Configuration
from conformance.operator.parts.quantisation import NUMBERS

#: The name of the group of all nodes, which is the model itself.
WHOLE: Final = "the_model"


@dataclass(frozen=True)
class Group:
    """Nodes with the same form.

    ``name`` is the name of their entry in a case file. ``sources`` are the layers whose KV cache
    they read, if they borrow one. ``left_out`` says which calls are not tried because they would
    take long. ``file`` is the name of its file, if the model has several, and ``apart``
    says how it differs from a group of the same description.
    """

    name: str
    form: Form
    nodes: tuple[AttentionNode, ...]
    sources: tuple[int, ...] = ()
    left_out: str = ""
    file: str = ""
    apart: str = ""

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers of the layers, in order."""
        return tuple(sorted({node.layer for node in self.nodes}))

    @property
    def title(self) -> str:
        """``Layers 0–3 and 5–8``."""
        text = layers_of([self])
        return text[:1].upper() + text[1:]

    @property
    def what(self) -> str:
        """The form in a few words: ``sliding window of 512, borrowing the cache of layer 13``."""
        if self.is_whole:
            return "the whole model"
        place = f"in {self.file}" if self.file else ""
        return ", ".join(filter(None, [*_words(self), self.apart, place]))

    @property
    def is_whole(self) -> bool:
        """Whether it is the model itself."""
        return self.name == WHOLE


def whole_of(groups: Sequence[Group]) -> Group:
    """The group of all nodes."""
    return Group(WHOLE, groups[0].form, tuple(node for group in groups for node in group.nodes))


def groups_of(
    nodes: Sequence[AttentionNode], configuration: Configuration
) -> tuple[list[Group], dict[str, str]]:
    """The groups in the order of their first layers, and for each node without a group, why."""
    forms: list[tuple[AttentionNode, Form]] = []
    unclear: dict[str, str] = {}
    for node in nodes:
        try:
            forms.append((node, form_of(node, configuration)))
        except Exception as error:  # what the node says may be anything
            unclear[node.name] = reason_of(error)
    return groups_of_forms(forms), unclear


def groups_of_forms(nodes: Iterable[tuple[AttentionNode, Form]]) -> list[Group]:
    """The groups of nodes with their forms, in the order of their first layers."""
    forms: dict[str, tuple[Form, list[AttentionNode]]] = {}
    layer_of: dict[str, int] = {}
    for node, form in nodes:
        layer_of[node.name] = node.layer
        forms.setdefault(form.key, (form, []))[1].append(node)
    groups = [
        Group(
            _name(form),
            form,
            tuple(members),
            tuple(sorted({layer_of[node.source] for node in members if node.source in layer_of})),
        )
        for form, members in forms.values()
    ]
    groups.sort(key=lambda group: group.layers)
    return unique([*_told_apart(groups)])


def _told_apart(groups: Sequence[Group]) -> Iterator[Group]:
    """The groups; those with equal descriptions say in what they differ."""
    for group in groups:
        alike = [other.form for other in groups if other.what == group.what]
        every = [{**form.fields, **_facts(form)} for form in alike]
        own = {**group.form.fields, **_facts(group.form)}
        differing = [name for name in own if any(own[name] != each.get(name) for each in every)]
        differing = [name for name in differing if isinstance(own[name], str | int | float)]
        missing = [name for each in every for name in each if name not in own]
        told = [f"{name} {own[name]}" for name in differing]
        told += [f"no {name}" for name in dict.fromkeys(missing)]
        yield replace(group, apart=", ".join(told[:2])) if len(alike) > 1 else group


def _facts(form: Form) -> dict[str, object]:
    """Facts on a form beside its fields."""
    facts = {"rows of tables": form.table_rows, "batch": form.batch_size}
    facts |= {"tokens": form.sequence_length, "unread presents": not form.reads_presents or None}
    return {name: value for name, value in facts.items() if value is not None}


def only_layers(groups: Sequence[Group], layers: Collection[int]) -> list[Group]:
    """The groups with those of their nodes that are in ``layers``, or all if it is empty.

    Raises :class:`ModelError` for a layer without attention.
    """
    if not layers:
        return list(groups)
    there = {layer for group in groups for layer in group.layers}
    if missing := sorted(set(layers) - there):
        raise ModelError(
            f"There is no layer {missing[0]} with attention, only {layers_of(groups)}."
        )
    kept = (
        replace(group, nodes=tuple(node for node in group.nodes if node.layer in layers))
        for group in groups
    )
    return [group for group in kept if group.nodes]


def unique(groups: Sequence[Group]) -> list[Group]:
    """The groups, each with a unique name."""
    total, seen = Counter(group.name for group in groups), Counter[str]()
    made = []
    for group in groups:
        seen[group.name] += 1
        number = f"_{seen[group.name]}" if total[group.name] > 1 else ""
        made.append(replace(group, name=group.name + number))
    return made


def _name(form: Form) -> str:
    parts = ["standard"] if form.graph else ["borrowing"] if form.borrows else []
    parts.append(f"window_{form.window}" if form.window else "global")
    return "_".join(parts)


def layers_of(groups: Iterable[Group]) -> str:
    """``layers 0–3 and 5`` of several groups."""
    return layers_with(node for group in groups for node in group.nodes)


def layers_with(nodes: Iterable[AttentionNode]) -> str:
    """``layers 0–3 and 5`` of these nodes."""
    numbers = sorted({node.layer for node in nodes})
    return f"{'layer' if len(numbers) == 1 else 'layers'} {ranges(numbers)}"


def ranges(numbers: Sequence[int]) -> str:
    """``0–3, 5 and 7–9`` for sorted numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1] if texts else "")))


def _words(group: Group) -> Iterator[str]:
    fields, form = group.form.fields, group.form
    if form.graph:
        yield "standard Attention"
    yield f"sliding window of {form.window}" if form.window else "global"
    if form.borrows and not form.graph:
        word = "layer" if len(group.sources) == 1 else "layers"
        of = f"of {word} {ranges(group.sources)}" if group.sources else "of another layer"
        how = " by leaving key and value out" if fields["key_value"] == "omitted" else ""
        yield f"borrowing the cache {of}{how}"
    if fields.get("key_value") == "packed":
        yield "packed QKV"
    if fields.get("softcap"):
        yield f"softcap {fields['softcap']:g}"
    if fields.get("head_sink"):
        yield "head_sink"
    if fields.get("smooth_softmax") == 1:
        yield "smooth softmax"
    if fields.get("qk_norm"):
        yield "QK norm"
    if fields.get("attention_bias"):
        yield "attention bias"
    if form.chunks:
        yield "query_seqlens"
    if fields.get("causal") == 0:
        yield "bidirectional"
    if fields.get("cache_dtype") in NUMBERS:
        yield f"{NUMBERS[fields['cache_dtype']]} cache"
    if form.cache == "static":
        yield f"static cache of {form.capacity} rows" if form.capacity else "static cache"
    if form.cache == "window":
        yield "sliding-window cache"
    if form.cache == "none":
        yield "no cache"
    if fields.get("presents") and not form.graph:
        yield {"none": "no presents"}.get(fields["presents"], "one of two presents")
    heads = f"{fields['num_heads']}:{fields['kv_num_heads']} heads of {fields['head_size']}"
    yield f"{heads}, {fields['dtype']}"
