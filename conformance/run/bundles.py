"""The bundles of a run's cases, of which those of the last case stay open for its next target."""

from __future__ import annotations

from conformance.base.array_types import NUMPY
from conformance.bundle.cache import Bundle, RunnerFiles, bundle_for, inputs_for, untouched
from conformance.case.call import GraphCall
from conformance.case.case import Case


class Bundles:
    """Opens bundles, and keeps those of the last case."""

    def __init__(self) -> None:
        self._case: Case | None = None
        self._open: dict[tuple[bool, bool], RunnerFiles] = {}

    def of(self, case: Case, *, variant: bool = False, later: bool = False) -> RunnerFiles:
        """The bundle of a case, or of its variant.

        ``later``: what is expected may be computed after the case ran. It is where that takes long:
        for a single node, whose outputs have known shapes, and which is not to be compared with a
        variant.

        Raises :class:`conformance.bundle.cache.BundleError`.
        """
        later = later and not case.relation and not isinstance(case.call, GraphCall)
        if case is not self._case:
            self._case, self._open = case, {}
        found = self._open.get((variant, later))
        if found is not None and untouched(found):
            return found
        bundle: RunnerFiles
        if variant:
            bundle = bundle_for(case.call, relation=case.relation)
        elif later:
            bundle = inputs_for(case.call, None, case.contract.readings, case.steps)
        else:
            bundle = bundle_for(case.call, readings=case.contract.readings)
        self._open[variant, later] = bundle
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
