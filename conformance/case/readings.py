"""The readings of the operator's documentation where its words can be read in two ways.

A contract that names a reading accepts the values of that reading, too, beside those of the
oracle's usual one. This module has the names and descriptions.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

ReadingName = Literal["scale_of_zero", "position_ids_of_each_row"]

#: What each reading takes the words to mean, as a sentence.
READINGS: Final[dict[ReadingName, str]] = {
    "scale_of_zero": "A scale of 0 is a scale like any other: all scores are 0.",
    "position_ids_of_each_row": (
        "Of a first prompt, the first element of position_ids in each row counts, not only that "
        "of the whole tensor."
    ),
}
assert tuple(READINGS) == get_args(ReadingName)
