"""The bundles of a run's cases, of which small ones stay open for its next target."""

from __future__ import annotations

from typing import Final

from conformance.base.array_types import NUMPY
from conformance.bundle.cache import Bundle, RunnerFiles, bundle_for, inputs_for, untouched
from conformance.case.call import GraphCall
from conformance.case.case import Case

#: A bundle with so many bytes of tensors at most stays open.
_EACH: Final = 1 << 18
#: So many bytes of tensors stay open in all.
_ALL: Final = 1 << 28


class Bundles:
    """Opens bundles. ``again``: each is needed for several targets.

    Opening one takes as long as running a small case. One that stays open is used while none of
    its files was changed.
    """

    def __init__(self, again: bool = False) -> None:
        self._room = _ALL if again else 0
        self._open: dict[tuple[int, bool, bool], tuple[Case, RunnerFiles]] = {}

    def of(self, case: Case, *, variant: bool = False, later: bool = False) -> RunnerFiles:
        """The bundle of a case, or of its variant.

        ``later``: what is expected may be computed after the case ran. It is where that takes long:
        for a single node, whose outputs have known shapes, and which is not to be compared with a
        variant.

        Raises :class:`conformance.bundle.cache.BundleError`.
        """
        later = later and not case.relation and not isinstance(case.call, GraphCall)
        key = id(case), variant, later
        bundle: RunnerFiles
        if key in self._open:
            _, bundle = self._open[key]
            if untouched(bundle):
                return bundle
            del self._open[key]
            self._room += tensor_bytes(case, bundle)
        if variant:
            bundle = bundle_for(case.call, relation=case.relation)
        elif later:
            bundle = inputs_for(case.call, None, case.contract.readings, case.steps)
        else:
            bundle = bundle_for(case.call, readings=case.contract.readings)
        size = tensor_bytes(case, bundle)
        if size <= min(_EACH, self._room):
            self._room -= size
            self._open[key] = case, bundle  # with the case, so that its id is not used again
        return bundle


def tensor_bytes(case: Case, files: RunnerFiles) -> int:
    """The size of all inputs and expected outputs; of the latter the most, if they are not known.

    Besides output_qk, the outputs of a step have at most the size of all inputs up to there: output
    that of query, and the presents that of the past and of the new tokens.
    """
    if isinstance(files, Bundle):
        return files.tensor_bytes
    call = case.call
    scores = sum(
        step.sequence_length * step.total_sequence_length
        for step in case.steps
        if "output_qk" in step.connected_outputs
    )
    score_bytes = scores * call.batch_size * call.num_heads * NUMPY[call.dtype].itemsize
    return files.tensor_bytes * (1 + len(case.steps)) + score_bytes
