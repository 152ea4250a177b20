"""What targets that do not run a model right do with it in standard operators."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from conformance.base.target_names import STANDARD, is_by_path
from conformance.base.words import plural
from conformance.case.case import Case
from conformance.harness.runner import RunnerFailed
from conformance.model.answer.answer_table import worst_kind
from conformance.model.answer.answers import ModelAnswer, answer, answer_of_model
from conformance.model.answer.headline import Answers, blamed, columns_of, headline, series_of
from conformance.model.calls.stages import NodeCall
from conformance.model.run.dense_prompts import DensePrompts
from conformance.model.run.on_target import (
    ModelProgram,
    ModelRun,
    in_standard_operators,
    run_model,
)
from conformance.report.model_table import AnswerKind
from conformance.results.records import ResultRecord
from conformance.rewriting.dense import CannotRewrite
from conformance.run.engine import PlanRun
from conformance.run.target import DescribedTarget, Plan
from conformance.targets import registry

_BEGINNING: Final = "In standard operators (gqa rewrite)"


@dataclass(frozen=True)
class WayRound:
    """Whether targets run a model right in standard operators.

    ``sentence`` says it, or why the model has no such form; "" if nothing had to be tried.
    ``kinds`` are the worst outcomes of the required calls, by target.
    """

    sentence: str = ""
    kinds: Mapping[str, AnswerKind] = field(default_factory=dict)


class WaysRound:
    """A model in standard operators, of which the targets make the ``required`` uses.

    The model itself is called anew, and of the calls of single nodes the first and the last of each
    kind, since the model is compared with one whose nodes are written by the same code. ``faults``
    is the number of nodes that cannot be checked.
    """

    def __init__(
        self,
        program: ModelProgram,
        prompts: DensePrompts | None,
        required: Collection[str],
        faults: int,
    ) -> None:
        ways = [way for way in program.ways if way.use in required]
        self._program = replace(program, ways=ways)
        self._prompts = prompts
        self._required = required
        self._faults = faults
        self._runs: dict[str, ModelRun] = {}
        self._ended: dict[str, str] = {}
        """Why calls of single nodes were not made, for each target whose runner failed."""

    def run_model(self, ready: DescribedTarget) -> None:
        """Run the model on a target."""
        self._runs[ready.name] = run_model(self._program, _rewriting(ready), self._prompts)

    def fails(self, run: ModelRun) -> bool:
        """Whether a target does not run the model right, and the graph may be right."""
        bad = (one for one in run.ways if one.way.use in self._required)
        return bool(run.load) or any(
            one.kind not in ("right", "untried") and one.cause.fault != "graph" for one in bad
        )

    def conclude(
        self,
        answers: Answers,
        targets: Iterable[DescribedTarget],
        cases: Mapping[str, Case],
    ) -> WayRound:
        """Call the rest, and say what the targets do that are not right by their ``answers``."""
        wanted = [ready for ready in targets if _can_try(ready) and self._is_bad(answers, ready)]
        if not wanted:
            return WayRound()
        try:
            in_standard_operators(self._program)
        except CannotRewrite as error:
            return WayRound(f"{_BEGINNING}: {error}")
        found = {ready.name: self._answers(answers[ready.name], ready, cases) for ready in wanted}
        # A graph that another target runs right is right.
        both = {**answers, **{f"{STANDARD}{name}": each for name, each in found.items()}}
        settled = blamed(both)
        made = {name: settled[f"{STANDARD}{name}"] for name in found}
        told = [self._sentence(made, series) for series in series_of(wanted)]
        kinds = {name: worst_kind(each, self._required) for name, each in made.items()}
        if self._faults:  # nobody knows whether these nodes are right
            kinds = {name: kind for name, kind in kinds.items() if kind != "right"}
        return WayRound(f"{_BEGINNING}: {' '.join(told)}", kinds)

    def _is_bad(self, answers: Answers, ready: DescribedTarget) -> bool:
        bad = (part for one in answers[ready.name] for part in one.bad)
        return any(part.use in self._required and not part.of_graph for part in bad)

    def _answers(
        self, was: Sequence[ModelAnswer], ready: DescribedTarget, cases: Mapping[str, Case]
    ) -> list[ModelAnswer]:
        if ready.name not in self._runs:
            self.run_model(ready)
        whole, *groups = was
        calls = [dict(self._again(one)) for one in groups]
        wanted = [cases[case] for each in calls for case in each]
        records = {record.case: record for record in self._records(ready, wanted)}
        return [
            answer_of_model(whole.group, ready.name, self._runs[ready.name]),
            *(
                answer(one.group, ready.name, ((call, records.get(at)) for at, call in of.items()))
                for one, of in zip(groups, calls, strict=True)
            ),
        ]

    def _again(self, one: ModelAnswer) -> Iterator[tuple[str, NodeCall]]:
        """The calls of a group to make once more, by case."""
        for part in one.parts:
            if part.use in self._required and part.results:
                for call, record in (part.results[0], part.results[-1]):
                    yield record.case, call

    def _sentence(self, answers: Answers, series: Sequence[DescribedTarget]) -> str:
        columns = columns_of(answers, series)
        text = headline(columns, self._required, self._faults)
        whole = columns[-1].answers[0]
        message = next((part.message for part in whole.bad if part.message), "")
        text = f"{text.removesuffix('.')} ({message.rstrip('.')})." if message else text
        told = [self._ended[each.name] for each in series if each.name in self._ended]
        return " ".join([text, *told])

    def _records(self, ready: DescribedTarget, cases: Sequence[Case]) -> Iterator[ResultRecord]:
        """The results of cases in standard operators, until the runner fails."""
        rewriting = _rewriting(ready)
        plan = Plan(rewriting.target, (*cases,), (), measured=False)
        with PlanRun(plan, ready=rewriting) as run:
            for at, case in enumerate(cases):
                try:
                    record = run.run_one(case).record
                except RunnerFailed as error:
                    left = plural(len(cases) - at, "call")
                    self._ended[ready.name] = f"{left} not made on {ready.name}: {error.sentence}"
                    return
                if isinstance(record, ResultRecord):
                    yield record


def _can_try(ready: DescribedTarget) -> bool:
    """Whether there is such a target for ``--ep``."""
    target = ready.target
    return not (target.in_standard_operators or is_by_path(target.ep) or ready.described is None)


def _rewriting(ready: DescribedTarget) -> DescribedTarget:
    """The same target, which gets the model in standard operators."""
    return replace(ready, target=registry.in_standard_operators(ready.target))
