"""Records of runs that are the same each time: the NumPy kernel on all cases, mutants on some."""

from __future__ import annotations

import hashlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from adapter import effort, is_for_the_kernel, shipped_cases
from common import JOBS, environment, gqa, program, records, scratch, write

#: Of every kind. None keeps state between cases, since the order of cases is no promise.
MUTANTS = """
crashes_where_borrowed_presents_are_omitted aborts_on_lengths_out_of_range falls_back_for_softcap
accepts_lengths_out_of_range accepts_a_narrow_bias accepts_any_chunk
accepts_whatever_can_be_computed refuses_float16 refuses_several_tokens_on_a_past
refuses_ragged_batches refuses_windows refuses_packed says_error says_nothing
says_where_it_stands_in_the_code masked_values_spread chunk_padding_spreads
rows_behind_the_cache_spread differs_in_the_last_bit every_second_run_wrong output_not_cleared
past_of_the_first_run heads_modulo bias_ignored past_key_and_value_swapped stale_tail_read
positions_one_too_far norm_ignored output_in_float32 output_flattened output_qk_not_scaled
query_key_summed_in_storage presents_empty shared_buffer_not_written nibbles_swapped
rotary_always_half_split softcap_ignored sink_ignored evicts_one_at_a_time
values_of_the_tile_before_of_64
""".split()  # noqa: SIM905
HANGS = "hangs_on_a_full_cache"

#: Lines for some of the mutants, so that known results are judged, too. The last does not fit.
KNOWN = """
target: {target}
expectations:
  - {{cases: "*", features: {{softcap: [given]}}, verdict: {verdict}, versions: ">=1",
      link: "https://example.org/1", why: Known.{more}}}
"""
EXPECTED = {
    "softcap_ignored": ("wrong", ", wrong: [output]"),
    "falls_back_for_softcap": ("fallback", ", placement: CPUExecutionProvider"),
    "says_error": ("unsupported", ", message: something else"),
}


def of_the_sample(id: str) -> bool:
    """Every 20th case, whatever cases there are besides."""
    return int(hashlib.sha256(id.encode()).hexdigest(), 16) % 20 == 0


def run(
    root: Path, folder: Path, name: str, mutants: list[str], ids: list[str]
) -> list[dict[str, Any]]:
    arguments = []
    for mutant in mutants:
        command = (sys.executable, str(root / "mutants" / "runner.py"), "--mutant", mutant)
        target = program(folder / "runners" / mutant, *command)
        arguments += ["--ep", target, "--name", mutant[:40]]
        if mutant in EXPECTED:
            verdict, more = EXPECTED[mutant]
            known = folder / f"{mutant}.yaml"
            known.write_text(KNOWN.format(target=mutant, verdict=verdict, more=more))
            arguments += ["--expectations", known.name]
    results = ("--jobs", str(JOBS), "--results", f"{name}.jsonl")
    env = environment(folder / "cache")
    done = gqa("run", *ids, *arguments, *results, cwd=folder, env=env)
    if done.returncode not in (0, 1):
        raise SystemExit(f"gqa run ended with status {done.returncode}: {done.stderr[-2000:]}")
    said = f"status {done.returncode}: {done.stdout.splitlines()[-2]}"
    lines = [{"id": "end", "said": said}, *records(folder / f"{name}.jsonl", folder, root)]
    # The whole selection is in the header, as it was typed.
    return [{**line, "id": f"{name}: {line['id']}", "selection": None} for line in lines]


def take(root: Path, out: Path) -> None:
    cases = [case for case in shipped_cases() if is_for_the_kernel(case)]
    killers = json.loads((root / "mutants" / "killers.json").read_text())
    telling = {id for mutant in MUTANTS for id in killers.get(mutant, ())}
    light = [case.id for case in cases if effort(case) < 1 << 18]
    some = [id for id in light if id in telling or of_the_sample(id)]
    hanging = [*dict.fromkeys([*killers[HANGS], *some[:: max(1, len(some) // 10)]])]
    with scratch() as folder, ThreadPoolExecutor(1) as pool:
        hangs = pool.submit(run, root, folder, "hangs", [HANGS], hanging)
        lines = run(root, folder, "mutants", MUTANTS, some)
        lines += run(root, folder, "kernel", ["correct"], [case.id for case in cases])
        write(out, "targets", [*lines, *hangs.result()])
