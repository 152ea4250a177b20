"""``gqa doctor``: what is installed on this machine."""

from __future__ import annotations

import click
from rich.markup import escape

from conformance.base.paths import cache_root
from conformance.cli.common import Status
from conformance.cli.console import make_console
from conformance.cli.options import program_options
from conformance.results.uncalled import uncalled_sentences
from conformance.run.engine import TargetRun
from conformance.run.target import TargetPlan
from conformance.targets.catalogue import Programs
from conformance.targets.registry import built_in


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="All versions, and all that an adapter can do.")
@program_options
def doctor(verbose: bool, programs: Programs) -> int:
    """Say which runtimes work here, and how to get the others."""
    console = make_console()
    available = 0
    targets = built_in(programs)
    for target in targets:
        if target.kernel is not None:  # needs what the target needs that it is a variant of
            continue
        with TargetRun(TargetPlan(target, (), ())) as run:
            ready = run.ready
        if ready.described is not None:
            available += 1
            lines = [
                f"[green]✓[/] [bold]{target.label}[/]  {escape(ready.described.device)}",
                f"    version   {escape(f'{ready.described.runtime} {ready.described.version}')}",
            ]
            if ready.described.adapter:
                lines.append(f"    adapter   {escape(ready.described.adapter)}")
            lines.append(f"    dtypes    {', '.join(ready.described.dtypes)}")
            for sentence in uncalled_sentences([ready.record()]):
                lines.append(f"    uncalled  {escape(sentence)}")
            if verbose:
                lines += [
                    f"    {'' if number else 'versions':<9} {escape(f'{name} {version}')}"
                    for number, (name, version) in enumerate(ready.described.versions.items())
                ]
        else:
            lines = [f"[red]✗[/] [bold]{target.label}[/]  {escape(ready.unavailable or '')}"]
            if ready.fix:
                lines.append(f"    fix       {escape(ready.fix)}")
        if target.program is not None:
            found = f"{target.program.path}, from {target.program.found_by}"
            lines.append(f"    program   {escape(found)}")
        kernels = [t.label for t in targets if t.kernel and t.kernel_variant_of == target.ep]
        if kernels:
            lines.append(f"    kernels   {', '.join(kernels)}")
        lines.append(f"    needs     {escape(target.needs)}")
        for line in lines:
            console.print(line, highlight=False, soft_wrap=True)
    console.print(f"cache     {cache_root()}", markup=False, highlight=False, soft_wrap=True)
    return Status.AS_EXPECTED if available else Status.INFRASTRUCTURE
