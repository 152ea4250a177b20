"""The bundles of a run's cases, of which small ones stay open for its next target."""

from __future__ import annotations

from typing import Final

from conformance.bundle.cache import RunnerFiles, bundle_for, inputs_for, untouched
from conformance.case.call import GraphCall
from conformance.case.case import Case

#: A bundle with so many bytes of tensors at most stays open: eight of ten in the corpus.
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
            self._room += bundle.tensor_bytes
        if variant:
            bundle = bundle_for(case.call, relation=case.relation)
        elif later:
            bundle = inputs_for(case.call, None, case.contract.readings, case.steps)
        else:
            bundle = bundle_for(case.call, readings=case.contract.readings)
        if bundle.tensor_bytes <= min(_EACH, self._room):
            self._room -= bundle.tensor_bytes
            self._open[key] = case, bundle  # with the case, so that its id is not used again
        return bundle
