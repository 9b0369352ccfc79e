"""Everything that a finding says is of the program that it prints, and not of the larger one that first failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations

import pytest

from kvpact.doctor.cases import Words
from kvpact.doctor.compare import against
from kvpact.doctor.exam import Exam, Gap
from kvpact.doctor.fault import Fault, all_faults
from kvpact.doctor.finding import Finding, Outcome
from kvpact.doctor.flips import changed, flipped, moved, pairs
from kvpact.doctor.life import breaks
from kvpact.doctor.lineage import begun, fed, fed_before, submitted, swapped, unforked
from kvpact.doctor.machine import run_programs
from kvpact.doctor.noise import Size, distance
from kvpact.doctor.places import happened
from kvpact.doctor.program import Advance, Fork, Program, Submit, Truncate, feed
from kvpact.doctor.registry import all_rules, select
from kvpact.doctor.report.document import as_json
from kvpact.doctor.reuse import in_common, kind_of
from kvpact.doctor.runner import check, examine
from kvpact.doctor.target import Capability, Setting
from scripted import Scripted

#: How the rule of a double measures a program.
GAPS: dict[str, Callable[[Exam, Program], Gap]] = {
    "decode-kernel-scales-otherwise": Exam.gap,
    "batch-comes-back-sorted": Exam.plain_gap,
    "causal-mask-aligned-upper-left": Exam.gap,
    "failed-store-stays-findable": Exam.plain_gap,
    "kept-one-token-short": Exam.plain_gap,
    "aborted-request-goes-on": Exam.plain_gap,
    "offset-not-loaded": Exam.plain_gap,
    "full-ring-keeps-drafts": Exam.plain_gap,
    "unwritten-slots-visible": lambda exam, program: exam.between(program, _full(program)),
    "fork-is-a-reference": lambda exam, program: exam.between(program, unforked(program)),
    "trim-does-nothing": Exam.plain_gap,
    "beam-values-stay": Exam.beam_gap,
    "one-mask-for-all-contexts": Exam.plain_gap,
    "kvpact-hash-trusted": Exam.gap,
    "tokens-not-compared": Exam.gap,
    "last-token-not-looked-up": lambda exam, program: exam.gap(program, "b"),
}
#: Told by content that is changed and must not be seen.
HIDDEN = ("trim-off-by-one-entry", "fork-writes-into-the-same-buffer", "cache-kept-on-the-model", "loaded-state-is-appended-to")
#: Told by addresses and salts, which are others in each run.
ADDRESSED = ("layers-share-a-buffer", "requests-share-a-default-buffer", "kvpact-salt-dropped", "salt-taken-for-an-adapter")
#: Told by the cache's state.
STATES = ("abort-keeps-the-first-block", "fork-counts-no-holder", "published-when-part-full", "length-rounded-up-to-the-block")


def _full(program: Program) -> Program:
    needed = sum(map(len, submitted(program).values()))
    return replace(program, setting=replace(program.setting, capacity=needed))


def _exam(fault: Fault) -> Exam:
    exam = Exam(fault.make())
    check(next(rule for rule in all_rules() if rule.code == "KV001"), exam)
    return exam


def _found(name: str) -> tuple[Fault, list[Finding]]:
    fault = next(fault for fault in all_faults() if fault.name == name)
    report = examine(fault.make(), select([fault.code]))
    return fault, [finding for finding in report.findings if finding.code == fault.code and finding.program is not None]


def _numbers(finding: Finding) -> Iterator[int]:
    """Positions, lengths and counts of the program that the finding prints."""
    program = finding.program
    assert program is not None
    yield from (program.length, len([step for step in program.steps if isinstance(step, Truncate)]))
    if finding.where.position is not None:
        yield finding.where.position
    if program.setting.capacity is not None:
        yield program.setting.capacity - sum(map(len, submitted(program).values()))
    for one, other in permutations([tokens for each in (program, *program.before) for tokens in fed(each).values()], 2):
        yield from (in_common(one, other), len(other) - in_common(one, other))
    for each in (program, *program.before):
        for index in range(len(each.steps) + 1):
            yield from fed_before(each, index).values()
        for step in each.steps:
            yield from [len(step.tokens)] if isinstance(step, Submit) else []
            yield from [count for _, count in step.counts] if isinstance(step, Advance) else []
            yield from [step.length] if isinstance(step, Truncate) else []


def _fits(finding: Finding) -> None:
    """A prompt that the line names is one that the program begins with; every other number of it is somewhere in the program."""
    program = finding.program
    assert program is not None
    said = finding.what.split(";")[0]
    assert {int(number) for number in re.findall(r"\d+", said)} <= set(_numbers(finding)), said
    named = re.search(r"prompts? of ([\d, and]+)", said)
    if named is not None:
        assert [int(number) for number in re.findall(r"\d+", named[1])] == list(begun(program).values())[
            : len(re.findall(r"\d+", named[1]))
        ]
    if finding.where.position is not None and finding.where.request in begun(program):
        longest = max(fed_before(program, index).get(finding.where.request, 0) for index in range(len(program.steps) + 1))
        assert finding.where.position < longest


@pytest.mark.parametrize("name", GAPS)
def test_a_fresh_engine_shows_what_the_finding_says_of_its_program(name: str) -> None:
    fault, findings = _found(name)
    finding = next(finding for finding in findings if not finding.exact)
    assert finding.program is not None
    _fits(finding)
    exam = _exam(fault)
    gap = GAPS[name](exam, finding.program)
    assert gap.size is Size.FAULT
    assert gap.seen is not None
    assert finding.where.request == gap.seen.name
    assert finding.where.position == gap.seen.position
    assert finding.effect == pytest.approx(gap.effect, rel=0.01)
    assert finding.got == f"up to {gap.effect:.3g} nats away, over {gap.compared} rows"
    assert finding.evidence["differences"].keys() == {str(place) for place in gap.by_position}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_fresh_engine_shows_the_hidden_tokens_where_the_finding_says(name: str) -> None:
    fault, findings = _found(name)
    finding = next(finding for finding in findings if finding.exact and finding.effect is not None)
    program = finding.program
    assert program is not None
    _fits(finding)
    exam = _exam(fault)
    half, quarter = exam.num_ids // 2, exam.num_ids // 4
    other = swapped(program, {token: token + quarter for token in range(half, half + quarter)})
    one, two = ([exam.run(each) for _ in range(2)][-1] for each in (program, other))
    apart = {(a.name, a.position): distance(a.row, b.row) for a, b in zip(one.rows, two.rows, strict=True) if a.context == b.context}
    assert max(apart, key=lambda place: apart[place]) == (finding.where.request, finding.where.position)


@pytest.mark.parametrize("name", STATES)
def test_a_fresh_engine_breaks_the_same_law_after_the_step_that_the_finding_names(name: str) -> None:
    fault, findings = _found(name)
    finding = next(finding for finding in findings if finding.what.startswith("after step"))
    assert finding.program is not None
    broken = breaks(_exam(fault), finding.program, fault.code)
    assert broken is not None

    def said(text: str) -> str:
        return re.sub(r"block \d+", "block", text)  # which block is free depends on what the engine has done before

    assert said(finding.what) == said(f"after step {broken.step + 1} of {finding.program.length}, {broken.got}")
    assert said(finding.got) == said(broken.got)


def test_a_row_that_sees_the_future_is_named_with_the_token_of_the_small_program() -> None:
    fault, findings = _found("chunk-without-causal-mask")
    finding = findings[0]
    assert finding.program is not None
    exam = _exam(fault)
    rows = pairs(exam.run(finding.program), exam.run(changed(finding.program, "a", flipped(exam, -1))), "a")
    seen, row = next((seen, row) for seen, row in rows if moved(exam, seen.row, row))
    assert finding.where.position == seen.position
    assert finding.effect == pytest.approx(distance(seen.row, row), rel=0.01)
    _fits(finding)


@pytest.mark.parametrize("name", ["fork-copies-one-head", "snapshot-turns-heads"])
def test_what_moved_entries_is_in_the_program(name: str) -> None:
    _, (finding,) = _found(name)
    assert finding.program is not None
    assert finding.what.endswith(f"after {happened(finding.program)}")


def test_what_moved_entries_is_read_from_the_steps() -> None:
    steps = feed("a", (1, 2, 3))
    assert happened(Program(steps=steps)) == "it was decoded"
    assert happened(Program(steps=(*steps, Fork("a", "b")))) == "it was forked"


@pytest.mark.parametrize(
    ("first", "second", "pieces", "said"),
    [
        ((1, 2, 3), (1, 2, 3), (), "exact hit of 3 tokens"),
        ((1, 2, 3), (1, 2), (), "hit on a longer entry with 2 tokens"),
        ((1, 9), (1, 2, 3), (), "partial hit with 1 token in common and 2 behind them"),
        ((1,), (1, 2, 3), (2,), "hit with 1 token in common and 2 behind them, which goes on"),
    ],
)
def test_a_hit_is_named_by_the_tokens_that_two_contexts_have_in_common(
    first: tuple[int, ...], second: tuple[int, ...], pieces: tuple[int, ...], said: str
) -> None:
    assert kind_of(Program(steps=(*feed("a", first), *feed("b", second, *pieces)))) == said


def test_a_finding_falls_back_to_the_program_that_failed_where_the_small_one_does_not_fail_again() -> None:
    """As an engine that fails every now and then."""
    target = Scripted()
    target.capabilities = target.capabilities - {Capability.ALL_ROWS}  # then nothing else is asked first
    exam = Exam(target)
    check(next(rule for rule in all_rules() if rule.code == "KV001"), exam)
    program = Program(steps=feed("a", tuple(range(8, 20)), 6, 1, 1))
    tried: list[Program] = []

    def gap(exam: Exam, tried_now: Program) -> Gap:
        tried.append(tried_now)
        wrong = len(tried) < 4
        return Gap(
            seen=None, effect=5.0 if wrong else 0.0, size=Size.FAULT if wrong else Size.ROUNDING, compared=len(tried), by_position={}
        )

    words = Words(code="KV101", what="{case}", case=lambda shown: f"{shown.length} steps", cause="x", cure="y")
    verdict = against(exam, [("", lambda tag: program)], words, gap=gap)
    assert verdict.outcome is Outcome.FAILED
    (finding,) = verdict.findings
    assert finding.program == program
    assert (finding.what, finding.effect) == (f"{program.length} steps", 5.0)
    assert finding.got == "up to 5 nats away, over 1 rows"


def test_a_drawn_program_s_failure_is_measured_on_the_small_program() -> None:
    fault = next(fault for fault in all_faults() if fault.name == "decode-kernel-scales-otherwise")
    exam = _exam(fault)
    run = run_programs(exam.target, exam.noise, range(12), failures=1)
    (failure,) = run.failures
    gap = _exam(fault).gap(failure.program)
    assert gap.seen is not None
    assert failure.seen is not None
    assert failure.seen.position == gap.seen.position
    assert failure.effect == pytest.approx(gap.effect, rel=0.01)


def test_tries_of_a_program_that_may_hit_have_tokens_of_their_own() -> None:
    fault = next(fault for fault in all_faults() if fault.name == "tokens-not-compared")
    exam = Exam(fault.make())
    program = Program(steps=(*feed("a", (9, 10, 11, 12, 13)), *feed("b", (9, 10, 11, 12, 14))))
    tried: list[tuple[int, ...]] = []

    def fails(smaller: Program) -> bool:
        tried.append(tuple(token for tokens in submitted(smaller).values() for token in tokens))
        return len(submitted(smaller)) == 2

    smallest = exam.smallest(program, fails)
    assert len(set(tried)) == len(tried)
    assert len(submitted(smallest)["a"]) == 1
    alone = exam.smallest(replace(program, setting=Setting(reuse=False)), lambda smaller: 9 in submitted(smaller).get("a", ()))
    assert submitted(alone) == {"a": (9,)}


def test_a_rule_prints_the_same_program_alone_and_after_others() -> None:
    fault = next(fault for fault in all_faults() if fault.name == "length-lowered-arrays-kept")
    shown = [
        [found.program for found in examine(fault.make(), select(codes)).findings if found.code == "KV504"]
        for codes in (["KV504"], ["KV104", "KV504"])
    ]
    assert shown[0]
    assert shown[0] == shown[1]


@pytest.mark.parametrize("name", [*HIDDEN, *STATES, *ADDRESSED])
def test_a_finding_says_the_same_each_time(name: str) -> None:
    """No address, no salt of the day: equal examinations have equal reports."""
    fault = next(fault for fault in all_faults() if fault.name == name)
    one, other = (as_json(examine(fault.make(), select([fault.code]))) for _ in range(2))
    assert one == other
