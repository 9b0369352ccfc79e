"""A context that was saved and loaded is not the one that was saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kvpact.doctor.exam import Exam, Inspect
from kvpact.doctor.execution import Account
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.noise import distance
from kvpact.doctor.numbers import KINDS
from kvpact.doctor.program import Advance, Load, Program, Save, Step, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Session

#: Tokens.
_GOING_ON = 2
_CAUSE = "part of the state is not in the snapshot (values, lengths, positions), is rounded, or is a view of memory that is still written"
_CURE = "save keys, values, lengths and positions of each layer as copies, in their own dtype, and compare them after loading"


def rows(exam: Exam) -> Verdict:
    """The saved context, the loaded one, and one that was loaded after the saved one had gone on: equal shapes, so equal rows."""
    if exam.target.lossy is not None:
        return inconclusive(f"{exam.target.lossy}: rows are not compared, entries are")
    compared = 0
    for length in (1, exam.length(12)):
        tokens, going_on = exam.tokens(f"snapshot {length}", length), exam.tokens(f"snapshot on {length}", _GOING_ON)
        for late in (False, True):
            program = _program(exam, tokens, going_on, late)
            execution = exam.run(program)
            saved, loaded = execution.of("a")[-len(going_on) :], execution.of("b")[-len(going_on) :]
            for one, other in zip(saved, loaded, strict=True):
                if exam.differs(one.row, other.row):
                    return failed(_of_rows(exam, other.position, distance(one.row, other.row), late, program))
                compared += 1
    return passed(f"{compared} rows after loading equal those of the context that was saved")


def entries(exam: Exam) -> Verdict:
    """Entries of each layer, of the saved context and of the loaded one, bit for bit in one session."""
    tokens, going_on = exam.tokens("snapshot", exam.length(9)), exam.tokens("snapshot on", _GOING_ON)
    compared = 0
    # A format may keep entries otherwise once they are older: then only what did not go on can be compared.
    for late in (False, True) if exam.target.stored is None and exam.target.lossy is None else (False,):
        program = _program(exam, tokens, (), late, going_on)
        found: list[tuple[int, str, Any, Any]] = []
        exam.run(program, inspect=_into(found, exam.target.num_layers or 0))
        for place, (layer, kind, saved, loaded) in enumerate(found):
            if saved.shape != loaded.shape or not np.array_equal(saved, loaded, equal_nan=True):
                keys = kind == "values" and np.array_equal(loaded, found[place - 1][3])
                return failed(_of_entries(layer, kind, saved, loaded, program, keys=keys))
            compared += saved.size
    if not compared:
        return inconclusive("the target does not say how many layers it has")
    return passed(f"{compared} entries are equal after saving and loading")


def _into(found: list[tuple[int, str, Any, Any]], num_layers: int) -> Inspect:
    return lambda session, account: found.extend(_both(session, account, num_layers))


def _both(session: Session, account: Account, num_layers: int) -> Iterator[tuple[int, str, Any, Any]]:
    """Entries of the saved context up to where the loaded one ends. Layers that let go of old entries are left out."""
    length = len(account.saved["s"][0])
    for layer in range(num_layers):
        for kind, one, other in zip(KINDS, session.entries("a", layer), session.entries("b", layer), strict=True):
            going_on = len(account.fed["a"]) > length
            if not going_on or len(one) == len(account.fed["a"]):
                yield layer, kind, np.array(one[:length] if going_on else one), np.array(other)


def _of_entries(layer: int, kind: str, saved: Any, loaded: Any, program: Program, *, keys: bool) -> Finding:
    got = f"shape {loaded.shape}" if saved.shape != loaded.shape else f"{int((saved != loaded).sum())} of {saved.size} entries differ"
    return Finding(
        code="KV604",
        what=f"{kind} of layer {layer} are others after saving and loading" + (": they are the keys" if keys else ""),
        expected=f"the entries that were saved, shape {saved.shape}",
        got=got,
        where=Where(request="b", layer=layer),
        exact=True,
        cause=_CAUSE,
        cure=_CURE,
        program=program,
    )


def _saved(exam: Exam, tokens: tuple[int, ...]) -> Program:
    return Program(steps=(Submit("a", tokens), Advance((("a", len(tokens)),)), Save("a", "s")), setting=exam.cold)


def _program(exam: Exam, tokens: tuple[int, ...], going_on: tuple[int, ...], late: bool, between: tuple[int, ...] = ()) -> Program:
    """late: the saved context goes on before the snapshot is loaded, so a snapshot that is a view has changed by then."""
    saved = _saved(exam, tokens)
    after = going_on or (between if late else ())
    one: tuple[Step, ...] = (Submit("a", after), *(Advance((("a", 1),)) for _ in after)) if after else ()
    other: tuple[Step, ...] = (Submit("b", going_on), *(Advance((("b", 1),)) for _ in going_on)) if going_on else ()
    load = (Load("s", "b"),)
    return replace(saved, steps=(*saved.steps, *((*one, *load) if late else (*load, *one)), *other))


def _of_rows(exam: Exam, position: int, effect: float, late: bool, program: Program) -> Finding:
    return Finding(
        code="KV604",
        what=f"a loaded context parts from the saved one at position {position}" + (", loaded after that had gone on" if late else ""),
        expected="equal rows: equal tokens, equal shapes",
        got=f"{effect:.3g} nats away",
        where=Where(request="b", position=position),
        exact=exam.exact,
        effect=effect,
        floor=exam.noise.floor,
        cause=_CAUSE,
        cure=_CURE,
        program=program,
    )


RULE = Rule(
    code="KV604",
    page=Page(
        symptoms=(
            "restored session answers differently",
            "saved cache is wrong after loading",
            "snapshot changes while generation goes on",
        ),
        checks="Save, load, and go on in both: rows must be equal. Entries before and after, bit for bit. Again with the saved one "
        "going on before the snapshot is loaded.",
        matters="Paused, moved and swapped contexts live by this. What is lost shows as another context, never as an error.",
        lookalikes="A snapshot in a narrower format is lossy on purpose only where that is declared.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#34232", "vllm-project/vllm-metal#144"),
    ),
    ways=(
        Way(name="rows", needs=frozenset({Capability.SAVE}), check=rows, exact=True),
        Way(name="entries", needs=frozenset({Capability.SAVE, Capability.ENTRIES}), check=entries, exact=True),
    ),
)
