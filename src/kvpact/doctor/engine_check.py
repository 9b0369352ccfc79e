"""The doctor from Python: examine an engine, or run one saved program on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvpact.doctor.expectations import by_code
from kvpact.doctor.finding import Report
from kvpact.doctor.program import Program
from kvpact.doctor.registry import select as chosen
from kvpact.doctor.report.lines import finding_text
from kvpact.doctor.rerun import Replay, run_again
from kvpact.doctor.resolve import Options, resolve
from kvpact.doctor.runner import Watcher, examine
from kvpact.doctor.target import Target


class ContractBroken(AssertionError):
    """An engine was found to break the contract. report: the whole examination."""

    def __init__(self, report: Report) -> None:
        super().__init__("\n\n".join(finding_text(finding) for finding in report.findings))
        self.report = report


def check_engine(
    engine: Any,
    *,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    seed: int = 0,
    budget: float | None = None,
    expected: Mapping[str, str] | None = None,
    watch: Watcher | None = None,
    raising: bool = True,
) -> Report:
    """Examine `engine`: a Target, what the command line takes as one, a transformers model, a callable `step(token_ids, state)` or
    `generate(token_ids, max_new_tokens)`, or a class or function without arguments that gives one of these.

    select, ignore: codes of rules, or their beginnings, or names: "KV1,KV2", or a list. budget: seconds. expected: reasons by code of
    rules that are known to fail. Raises ContractBroken when there are findings, unless `raising` is False; the report tells all the rest.
    """
    report = examine(
        as_target(engine), chosen(select, ignore), seed=seed, budget=budget, expected=by_code(expected or {}, "expected"), watch=watch
    )
    if raising and report.findings:
        raise ContractBroken(report)
    return report


def as_target(engine: Any, options: Options | None = None) -> Target:
    """A target of what `check_engine` takes. Raises TargetUnusable."""
    options = options or Options()
    if isinstance(engine, Target):
        return engine
    if isinstance(engine, str):
        return resolve(engine, options)
    from kvpact.doctor.adapters.callables import as_callable_target

    name = getattr(engine, "__qualname__", type(engine).__qualname__)
    return as_callable_target(engine, name=name, vocab=options.vocab, dtype=options.dtype)


def replay(program: Program, engine: Any, *, code: str | None = None, seed: int = 0) -> Replay:
    """Run a program of a finding on an engine. code, seed: of the finding, so that its rule can look where rows alone don't tell."""
    return run_again(program, as_target(engine), code=code, seed=seed)
