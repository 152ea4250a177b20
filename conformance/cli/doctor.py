"""``gqa doctor``: the runtimes that are installed on this machine."""

from __future__ import annotations

import click
from rich.markup import escape

from conformance.base.paths import cache_root
from conformance.cli.common import Status
from conformance.cli.console import make_console
from conformance.cli.options import program_options
from conformance.results.uncalled import uncalled_sentences
from conformance.run.engine import PlanRun
from conformance.run.target import Plan
from conformance.targets.catalogue import OptionValues
from conformance.targets.registry import built_in
from conformance.targets.tools import tools_root


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="All versions, and all that an adapter can do.")
@program_options
def doctor(verbose: bool, programs: OptionValues) -> int:
    """Say which runtimes work here, and how to get the others."""
    console = make_console()
    available = 0
    targets = built_in(programs)
    for target in targets:
        if target.entry.kernel is not None:  # it has the needs of the target whose kernel it is
            continue
        with PlanRun(Plan(target, (), ())) as run:
            ready = run.ready
        lines: list[tuple[str, str]] = []
        if (described := ready.described) is not None:
            available += 1
            head = f"[green]✓[/] [bold]{target.label}[/]  {escape(described.device)}"
            lines.append(("version", f"{described.runtime} {described.version}"))
            lines += [("adapter", described.adapter)] if described.adapter else []
            lines.append(("dtypes", ", ".join(described.dtypes)))
            lines += [("lacks", ", ".join(described.lacks))] if described.lacks else []
            fixes = dict.fromkeys(filter(None, described.lacks.values()))
            lines += [("fix", fix) for fix in fixes]
            lines += [("uncalled", text) for text in uncalled_sentences([ready.record()])]
            for number, (name, version) in enumerate(described.versions.items() if verbose else ()):
                lines.append(("" if number else "versions", f"{name} {version}"))
        else:
            head = f"[red]✗[/] [bold]{target.label}[/]  {escape(ready.unavailable or '')}"
            lines += [("fix", ready.fix)] if ready.fix else []
        if target.program is not None:
            lines.append(("program", f"{target.program.path}, from {target.program.found_by}"))
        kernels = [
            t.label for t in targets if t.entry.kernel and t.entry.kernel_variant_of == target.ep
        ]
        lines += [("kernels", ", ".join(kernels))] if kernels else []
        lines.append(("needs", target.entry.needs))
        for line in (head, *(f"    {label:<9} {escape(text)}" for label, text in lines)):
            console.print(line, highlight=False, soft_wrap=True)
    for text in (f"cache     {cache_root()}", f"tools     {tools_root()}"):
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return Status.AS_EXPECTED if available else Status.INFRASTRUCTURE
