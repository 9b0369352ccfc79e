"""A mask that does not fit the scores it meets: too few keys, one row for all queries, axes exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, failed, inconclusive, passed
from kvpact.doctor.program import Advance, Program, Step, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row, Session, Setting, Target

_CAUSE = "the mask was made for this step's tokens alone, or for one query, or with its axes exchanged"
_CURE = "a mask is [rows, 1, new, cached + new], True or 0 where a key may be seen; print it beside the scores of the same layer"


def listen(exam: Exam) -> Verdict:
    """A prompt, a single step, a chunk, and a batch with padding: what the mask is when it meets the scores."""
    heard = 0
    for steps in _programs(exam):
        program = Program(steps=steps, setting=exam.cold)
        ear = _Listener(exam.target)
        Exam(ear, seed=exam.seed).run(program)
        heard += ear.heard
        if ear.findings:
            return failed(*(replace(finding, program=program) for finding in ear.findings[:3]))
    if not heard:
        return inconclusive("no attention was heard: a compiled or custom kernel; ask for the eager or sdpa implementation")
    return passed(f"{heard} masks and scores fit, over a prompt, a step, a chunk and a padded batch")


def _programs(exam: Exam) -> list[tuple[Step, ...]]:
    tokens = exam.tokens("masks", exam.length(11))
    few = len(tokens) // 2
    programs: list[tuple[Step, ...]] = [(Submit("a", tokens), Advance((("a", few),)), Advance((("a", 1),)))]
    if exam.target.can(Capability.CHUNK):
        programs.append((Submit("a", tokens), Advance((("a", few),)), Advance((("a", len(tokens) - few),))))
    if exam.target.can(Capability.BATCH):
        programs.append((Submit("a", tokens), Submit("b", tokens), Advance((("a", few), ("b", few + 2))), Advance((("a", 1), ("b", 1)))))
    return programs


class _Listener(Target):
    """The target, with an ear at its module for each feed."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.name, self.level, self.capabilities = target.name, target.level, target.capabilities
        self.vocab_size, self.max_len = target.vocab_size, target.max_len
        self.findings: list[Finding] = []
        self.heard = 0

    def open(self, setting: Setting) -> Session:
        return _Listening(self, self._target.open(setting))

    def module(self) -> Any:
        return self._target.module()


class _Listening(Session):
    def __init__(self, listener: _Listener, session: Session) -> None:
        self._listener, self._session = listener, session
        self._width = 0

    def feed(self, tokens: Mapping[str, Sequence[int]]) -> Mapping[str, list[Row]]:
        from kvpact.doctor.audit.capture import listening
        from kvpact.doctor.audit.masks import attention, judge

        new = max(map(len, tokens.values()))
        with listening(self._listener.module()) as heard:
            rows = self._session.feed(tokens)
        padded = [new - len(each) for each in tokens.values()]
        self._listener.findings += judge(heard, cached=self._width, new=new, padded=padded)
        self._listener.heard += len(attention(heard, new))
        self._width += new
        return rows

    def close(self) -> None:
        self._session.close()


RULE = Rule(
    code="KV208",
    page=Page(
        symptoms=(
            "batched generation is wrong",
            "size of tensor must match",
            "wrong from the second step on",
            "chunked prompt gives garbage",
        ),
        checks="The mask that meets the scores in each attention, beside their shape: a column for each key, a row for each new token.",
        matters="torch spreads an axis of one over all places without a word, and helpers pad what is short: the wrong keys are seen.",
        lookalikes="A mask of padding alone has one row for all queries; in a causal model it must be joined with the causal one.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#47597", "huggingface/transformers#30670", "huggingface/transformers#18104"),
    ),
    ways=(Way(name="masks beside scores", needs=frozenset({Capability.MODULE}), check=listen, exact=True),),
)
