"""What a target declares that it can do, it must do: a rule that relies on it would look at nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from kvpact.doctor.claim import Claim
from kvpact.doctor.errors import BrokeOff, OutOfTime
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, passed
from kvpact.doctor.program import Abort, Advance, Fork, Load, Program, Reorder, Save, Submit, Truncate, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Setting
from kvpact.errors import KvpactError

_CAUSE = "the adapter declares what its engine, in this version or with this cache, does not have"
_CURE = "take the capability out of the adapter's declaration, or make its method do what the docstring of Session says"


def declared(exam: Exam) -> Verdict:
    """Each declared capability is used once, in the smallest program that needs it."""
    exam.first(_fed(exam))  # a target that can't even be fed is an error, and no untrue declaration
    findings, used = [], []
    broken: Exception | None = None
    for capability, (program, look) in _TRIALS.items():
        seen = exam.target.untrue.get(capability)
        if not exam.target.can(capability) and seen is None:
            continue
        trial = program(exam)
        if not exam.target.can(*trial.needs):
            continue
        used.append(capability.value)
        try:
            wrong = _tried(exam, trial, look) or seen
        except _NO_ANSWER as error:
            broken = broken or error
            continue
        if wrong is not None:
            findings.append(_finding(capability, exam.target.claims.get(capability), wrong, trial))
    told = {(finding.what, finding.got): finding for finding in findings}  # several capabilities may rest on one claim
    if told:
        return failed(*told.values())
    if broken is not None:
        raise broken
    return passed(f"{', '.join(used)} were used once each" if used else "nothing is declared")


#: A target that breaks off in the middle of a call has not refused it, so nothing was declared that isn't true.
_NO_ANSWER = (BrokeOff, ConnectionError, TimeoutError)
#: What is wrong with what was seen, given the exam, the open session and the rows by step; None when nothing is.
Look = Callable[[Exam, Any, Any], "str | None"]


def _tried(exam: Exam, program: Program, look: Look) -> str | None:
    said: list[str | None] = []

    def inspect(session: Any, account: Any) -> None:
        said.append(look(exam, session, account))

    try:
        execution = exam.run(program, inspect=inspect) if look in _ON_SESSION else exam.first(program)
    except (OutOfTime, *_NO_ANSWER):
        raise
    except KvpactError as error:
        return error.message
    except Exception as error:  # whatever it raises: it was said to be possible
        return f"{type(error).__name__}: {error}"
    return said[0] if look in _ON_SESSION else look(exam, None, execution)


def _finding(capability: Capability, claim: Claim | None, wrong: str, program: Program) -> Finding:
    words = claim or Claim(
        what=f"the target declares {capability.value}, and does not have it",
        expected=_EXPECTED.get(capability, "the program runs"),
        cause=_CAUSE,
        cure=_CURE,
    )
    return Finding(code="KV002", got=wrong, where=Where(), exact=True, program=program, **asdict(words))


def _fed(exam: Exam) -> Program:
    return Program(steps=feed("a", exam.tokens("capability", 6)), setting=exam.cold)


def _pair(exam: Exam, *counts: tuple[int, int]) -> Program:
    sizes = [sum(count[side] for count in counts) for side in (0, 1)]
    given = [Submit(name, exam.tokens(f"capability {name}", size)) for name, size in zip("ab", sizes, strict=True)]
    calls = [Advance(tuple((name, count) for name, count in zip("ab", both, strict=True) if count)) for both in counts]
    return Program(steps=(*given, *calls))


def _twice(exam: Exam) -> Program:
    """The second is a hit, where there are hits."""
    tokens = exam.tokens("capability usage", exam.length(3 * (exam.target.block_size or 16) + 1))
    return Program(steps=(*feed("first", tokens), *feed("a", tokens)))


def _then(exam: Exam, *steps: Any, last: str = "a") -> Program:
    return Program(steps=(*feed("a", exam.tokens("capability", 6)), *steps, *feed(last, exam.tokens("capability then", 1))))


def _runs(exam: Exam, session: Any, execution: Any) -> str | None:
    """The program came to its end, with a row for each call."""
    return None if all(len(seen.row) for seen in execution.rows) else "an empty row"


def _all_rows(exam: Exam, session: Any, execution: Any) -> str | None:
    return None if len(execution.rows) == 6 else f"{len(execution.rows)} rows for 6 tokens"


def _full_rows(exam: Exam, session: Any, execution: Any) -> str | None:
    row = execution.rows[-1].row
    if row.shape != (exam.target.vocab_size,):
        return f"a row of shape {tuple(row.shape)} for a vocabulary of {exam.target.vocab_size}"
    return "a row with scores left out" if np.isnan(row).any() else None


def _entries(exam: Exam, session: Any, account: Any) -> str | None:
    for layer in range(exam.target.num_layers or 1):
        keys, values = session.entries("a", layer)
        length = keys.shape[0]
        if keys.shape[:2] != values.shape[:2] or keys.ndim != 3:
            return f"keys {keys.shape} and values {values.shape} in layer {layer}"
        if length != 6 and not (exam.target.window and 1 <= length < 6 and length >= exam.target.window - 1):
            return f"{length} entries of 6 tokens in layer {layer}"
    return None


def _storage(exam: Exam, session: Any, account: Any) -> str | None:
    owners = {memory.owner for memory in session.storage()}
    return None if owners == {"a"} else f"memory of {sorted(owners) or 'nobody'}, where a alone lives"


def _usage(exam: Exam, session: Any, account: Any) -> str | None:
    for name in ("first", "a"):
        cached, length = session.cached_tokens(name), len(account.fed[name])
        if not 0 <= cached <= length:
            return f"{cached} of {length} tokens were cached"
    return None


def _tables(exam: Exam, session: Any, account: Any) -> str | None:
    return "no view" if session.cache_view() is None else None


_ON_SESSION = (_entries, _storage, _usage, _tables)

#: The program that uses it, and what to look at.
_TRIALS: Mapping[Capability, tuple[Callable[[Exam], Program], Look]] = {
    Capability.ALL_ROWS: (_fed, _all_rows),
    Capability.FULL_ROWS: (_fed, _full_rows),
    Capability.CHUNK: (lambda exam: Program(steps=feed("a", exam.tokens("capability", 6), 3)), _runs),
    Capability.BATCH: (lambda exam: _pair(exam, (5, 3), (1, 1)), _runs),
    Capability.EVEN_BATCH: (lambda exam: _pair(exam, (5, 5), (1, 1)), _runs),
    Capability.RAGGED: (lambda exam: _pair(exam, (5, 0), (1, 3), (2, 1)), _runs),
    Capability.PADDING: (lambda exam: Program(steps=_pair(exam, (5, 3)).steps, setting=Setting(pad_id=3)), _runs),
    Capability.CAPACITY: (lambda exam: Program(steps=_fed(exam).steps, setting=Setting(capacity=min(64, exam.target.max_len))), _runs),
    Capability.REUSE: (lambda exam: Program(steps=_fed(exam).steps, before=(Program(steps=_fed(exam).steps),)), _runs),
    Capability.SALT: (lambda exam: Program(steps=_fed(exam).steps, setting=Setting(salt="a")), _runs),
    Capability.TRUNCATE: (lambda exam: _then(exam, Truncate("a", 4)), _runs),
    Capability.FORK: (lambda exam: _then(exam, Fork("a", "b"), last="b"), _runs),
    Capability.REORDER: (
        lambda exam: Program(
            steps=(
                *_pair(exam, (4, 4)).steps,
                Reorder(("a", "b"), ("b", "a")),
                *(Submit(name, exam.tokens(name, 1)) for name in "ab"),
                Advance((("a", 1), ("b", 1))),
            )
        ),
        _runs,
    ),
    Capability.ABORT: (lambda exam: _then(exam, Abort("a")), _runs),
    Capability.SAVE: (lambda exam: _then(exam, Save("a", "k"), Load("k", "b"), last="b"), _runs),
    Capability.USAGE: (_twice, _usage),
    Capability.ENTRIES: (_fed, _entries),
    Capability.STORAGE: (_fed, _storage),
    Capability.TABLES: (_fed, _tables),
}

_EXPECTED: Mapping[Capability, str] = {
    Capability.ALL_ROWS: "a row for each token that was fed",
    Capability.FULL_ROWS: "a score for each id of the vocabulary",
    Capability.ENTRIES: "an entry for each token, in every layer",
    Capability.STORAGE: "the memory of every living context",
    Capability.USAGE: "a count between nothing and all tokens",
}

RULE = Rule(
    code="KV002",
    page=Page(
        symptoms=("a rule ends in an error", "the adapter raises in the middle of an examination"),
        checks="Every capability that the target declares is used once, in the smallest program that needs it.",
        matters="Rules trust the declaration: what is declared and missing makes a check that looks at nothing.",
        lookalikes="What is not declared is not tried; rules that need it are skipped and say so. A connection that breaks, or a server "
        "that answers with a status of 500 and above, refuses nothing: the outcome is *error*, with the reason.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#30312", "microsoft/onnxruntime-genai#2140"),
    ),
    ways=(Way(name="declared", needs=frozenset(), check=declared, exact=True),),
)
