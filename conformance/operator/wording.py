"""A call in words, made of its features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from conformance.operator.features import BY_NAME


def words(features: Mapping[str, str | None]) -> str:
    """A call in words: ``Prompt, sliding-window cache, batch, partial rotary``.

    ``features`` are those of :func:`conformance.operator.features.features_of`. A feature that is
    None or missing is left out, and so is one whose value is plain or implied by another feature.
    """
    text = ", ".join(text for _, text in word_of_each(features)) or "call"
    return text[:1].upper() + text[1:]


def word_of_each(features: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """The names of the features that are not implied, each with its words."""
    for name, value in features.items():
        if value is not None and not BY_NAME[name].implied(value, features):
            yield name, BY_NAME[name].values[value].title
