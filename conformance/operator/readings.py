"""The readings of the operator's documentation where its words can be read in two ways.

A contract that names a reading accepts the values of that reading in addition to those of the
oracle's usual one. This module has the names and descriptions; the oracle computes the values.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

ReadingName = Literal[
    "scale_of_zero",
    "position_ids_of_each_row",
    "beyond_the_tables_unrotated",
    "prompt_without_lengths",
    "lengths_beyond_the_total",
    "negative_softcap_is_none",
    "prompts_of_query_seqlens",
]

#: The meaning of the words in each reading, as a sentence.
READINGS: Final[dict[ReadingName, str]] = {
    "scale_of_zero": "A scale of 0 is a scale like any other: all scores are 0.",
    "position_ids_of_each_row": (
        "Of a first prompt, the first element of position_ids in each row counts, not only that "
        "of the whole tensor."
    ),
    "beyond_the_tables_unrotated": (
        "A token whose position has no row in cos_cache and sin_cache is not rotated."
    ),
    "prompt_without_lengths": (
        "Of a first prompt, seqlens_k does not count: every sequence is as long as query."
    ),
    "lengths_beyond_the_total": (
        "seqlens_k counts where it goes beyond total_sequence_length, which only checks inputs."
    ),
    "negative_softcap_is_none": "A negative softcap means that there is none.",
    "prompts_of_query_seqlens": (
        "With query_seqlens, a sequence without past tokens is a first prompt, of whose "
        "position_ids only the first element counts."
    ),
}
assert tuple(READINGS) == get_args(ReadingName)
