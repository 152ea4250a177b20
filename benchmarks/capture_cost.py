"""What capturing costs: a model alone, and with what each of its attention nodes gets.

    python benchmarks/capture_cost.py MODEL [--tokens 256] [--steps 8] [--repeat 3]

Both are runs of ``runners/onnxruntime/capture.py`` in a process of its own, in turn. *Captured* has
everything that ``gqa check --prompt-ids`` does until it has its cases. Seconds are the minimum of
the repeats.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from conformance.model.capture import Tokens, capturable, capture
from conformance.model.captured import each_node, stages_of_captured
from conformance.model.configuration import configuration_beside
from conformance.model.feeds import feeds_of, interface_of
from conformance.model.groups import groups_of
from conformance.model.nodes import nodes_of
from conformance.model.reading import read_model


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description="Measure what capturing a model's values costs.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    model = read_model(asked.model)
    beside = configuration_beside(model.path)
    groups, _ = groups_of(nodes_of(model).nodes, beside)
    tokens = Tokens(tuple(number % 29 for number in range(asked.tokens)), asked.steps)
    feeds = feeds_of(interface_of(model, groups, beside), tokens.total)
    nodes, _ = capturable(model, groups)
    seconds: dict[str, list[float]] = {"alone": [], "captured": []}
    size = 0
    for _ in range(asked.repeat):
        for what, those in (("alone", []), ("captured", nodes)):
            with tempfile.TemporaryDirectory() as values, tempfile.TemporaryDirectory() as cases:
                start = time.perf_counter()
                found = capture(model, those, feeds, tokens, Path(values))
                if those:
                    stages_of_captured(each_node(groups, those), found, tokens, Path(cases))
                seconds[what].append(time.perf_counter() - start)
                size = sum(file.stat().st_size for file in Path(cases).iterdir())
    floor = min(seconds["alone"])
    print("| run | seconds | ratio |\n| --- | ---: | ---: |")
    for what, times in seconds.items():
        print(f"| {what} | {min(times):.2f} | {min(times) / floor:.2f} |")
    print(f"\n{len(nodes)} nodes, {tokens.steps + 1} calls, {size / 1e6:.0f} MB of cases.")


if __name__ == "__main__":
    main()
