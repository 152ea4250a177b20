"""``python -m conformance.maintain.sensitivity``: lists effects, and finds insensitive cases."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from conformance.bundle.effects import THRESHOLDS, effects, insensitive, lines
from conformance.bundle.replacements import REPLACEMENTS
from conformance.case.corpus import find, names_of
from conformance.case.selection import compile_expression
from conformance.maintain import run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the effects of the selected cases; returns 1 if one is insensitive."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.maintain.sensitivity",
        description="How far each feature of each case moves the output, in error budgets.",
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="as for gqa run")
    parser.add_argument("-k", dest="expression", default="", metavar="EXPR", help="as for gqa run")
    parser.add_argument("--insensitive", action="store_true", help="only insensitive cases")
    parser.add_argument("--summary", action="store_true", help="only a line for each feature")
    parser.add_argument("--replacements", action="store_true", help="list what is replaced by what")
    options = parser.parse_args(arguments)
    if options.replacements:
        for one in REPLACEMENTS:
            print(f"{one.key:<28} {one.sentence}")
        return 0
    selects = compile_expression(options.expression)
    cases = [case for case in find(options.paths).named if selects(names_of(case, None), case)]
    moved_by_case = [(case, effects(case.call, every=True)) for case in cases]
    refused = 0
    by_feature: dict[tuple[str, str], list[float]] = {}
    for case, moved in moved_by_case:
        sentence = insensitive(case, moved)
        refused += sentence is not None
        if case.contract.demands != "rejects":
            for name, effect in moved.items():
                if name not in case.insensitive_to:
                    by_feature.setdefault((name, case.call.dtype), []).append(effect)
        if not options.summary and (sentence or not options.insensitive):
            shown = (f"{label} {line}" for label, line in lines(moved))
            print(f"{case.id}  {'; '.join(shown)}")
            if sentence:
                print(f"    {sentence}")
    print()
    for (name, dtype), values in sorted(by_feature.items()):
        values.sort()
        at = [values[int(share * (len(values) - 1))] for share in (0.0, 0.1, 0.5)]
        threshold = f"threshold {THRESHOLDS[name]:g}" if name in THRESHOLDS else ""
        line = f"{name:<28} {dtype:<8} {len(values):>5} cases"
        print(f"{line}   least {at[0]:<9.3g} tenth {at[1]:<9.3g} median {at[2]:<9.3g} {threshold}")
    print(f"\n{len(moved_by_case)} cases, {refused} insensitive")
    return int(refused > 0)


if __name__ == "__main__":
    run_command(main)
