"""What a token sees, one place changed at a time, against what the model's configuration declares."""

from __future__ import annotations

import numpy as np

from kvpact.doctor.errors import AuditImpossible
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.flips import shared_scale
from kvpact.doctor.noise import same_bits
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability, Row

_CAUSE = "the mask of a layer is missing, one place off, or made for another kind of layer (full where a window is declared)"
_CURE = "compare the mask that meets the scores of that layer with the configuration: causal, and 0 <= query - key < window"
_LONGEST = 48
#: Changed one at a time, and the last two besides.
_PLACES = 6


def whole(exam: Exam) -> Verdict:
    """The whole model over one prompt: changing a token moves no row before it, and none that is farther than all windows together."""
    if not exam.exact and not exam.target.blurs:
        return inconclusive("the target does not repeat itself in bits: equal shapes can't be compared")
    back = _reach(exam)
    length = exam.length(24 if back is None or back + 8 > _LONGEST else back + 8)
    tokens = exam.tokens("receptive field", length)
    base = _rows(exam, tokens)
    blind = 0
    for place in sorted({*range(0, length, max(1, length // _PLACES)), length - 2, length - 1}):
        changed = (*tokens[:place], exam.other_token(tokens[place], "field"), *tokens[place + 1 :])
        moved = [query for query, row in enumerate(_rows(exam, changed)) if not same_bits(row, base[query])]
        blind += place not in moved
        wrong = [query for query in moved if query < place or (back is not None and query - place > back)]
        if wrong:
            blurred = shared_scale(exam)
            if blurred is not None:
                return blurred
            return failed(_of_model(wrong[0], place, back, moved, _program(exam, tokens)))
    if blind:
        return inconclusive(f"{blind} tokens do not move their own row: a leak could not have been seen")
    far = "as far back as the prompt goes" if back is None else f"{back} places back at most"
    return passed(f"{length} places, no row moves before the changed token, and what moves is {far}")


def layers(exam: Exam) -> Verdict:
    """Each attention layer by itself, with the mask it was given: what leaks in, and which distances are missing."""
    from kvpact.doctor.audit.layers import declared, missing_distances, taking_layers
    from kvpact.doctor.audit.visibility import compare

    if exam.target.lossy is not None:
        return inconclusive(f"{exam.target.lossy}: one scale for many places would let each of them move all")
    windows = exam.target.layer_windows
    widest = max((window for window in windows or () if window is not None and window + 8 <= _LONGEST), default=8)
    length = exam.length(max(16, widest + 8))
    program = _program(exam, exam.tokens("receptive field of layers", length))
    with taking_layers(exam.target.module(), length) as taken:
        exam.run(program)
    if not taken:
        return inconclusive("no layer that is called attention was run in this process")
    for layer in taken:
        told = [] if windows is None or layer.index is None else windows[layer.index : layer.index + 1]
        known, window = bool(told), told[0] if told else None
        try:
            seen = layer.sees(wanted := declared(length, window))
        except AuditImpossible as error:
            return inconclusive(f"{layer.where}: {error.message}")
        name = f"the configuration of layer {layer.index}: causal" + (f", window {window}" if window else "")
        leaks = [finding for finding in compare(seen, wanted, (length,), name, where=layer.where) if finding.exact]
        missing = missing_distances(seen, wanted) if known else []
        if leaks or missing:
            found = [*leaks, *_missing(missing, layer.where, name)]
            return failed(*(Finding(**{**vars(finding), "cause": _CAUSE, "cure": _CURE, "program": program}) for finding in found))
        if not np.tril(seen, -1).any():
            return inconclusive(f"layer {layer.index} sees nothing but the place itself: a fault could not have been seen")
    return passed(f"{len(taken)} attention layers see what is declared, over {length} places")


def _reach(exam: Exam) -> int | None:
    windows = exam.target.layer_windows
    if not windows or any(window is None for window in windows):
        return None
    return sum(window - 1 for window in windows if window is not None)


def _rows(exam: Exam, tokens: tuple[int, ...]) -> list[Row]:
    return [seen.row for seen in exam.run(_program(exam, tokens)).rows]


def _program(exam: Exam, tokens: tuple[int, ...]) -> Program:
    return Program(steps=feed("a", tokens), setting=exam.cold)


def _of_model(query: int, place: int, back: int | None, moved: list[int], program: Program) -> Finding:
    what = f"row {query} sees token {place}, " + ("which comes later" if query < place else f"{query - place} places back")
    allowed = "no later token" if back is None else f"no later token, and none more than {back} places back"
    return Finding(
        code="KV216",
        what=what,
        expected=f"{allowed}: what the configuration declares",
        got=f"changing token {place} moves rows {', '.join(map(str, moved[:8]))}{' and more' if len(moved) > 8 else ''}",
        where=Where(request="a", position=query),
        exact=True,
        cause=_CAUSE,
        cure=_CURE,
        program=program,
        evidence={"rows_moved": moved, "changed": place},
    )


def _missing(distances: list[int], where: Where, declared: str) -> list[Finding]:
    if not distances:
        return []
    far = f"{distances[0]}" if len(distances) == 1 else f"{distances[0]} to {distances[-1]}"
    return [
        Finding(
            code="KV216",
            what=f"no token sees the one {far} places back",
            expected=declared,
            got=f"{len(distances)} distances that no pair of places shows, in three draws",
            where=where,
            exact=True,
            cause=_CAUSE,
            cure=_CURE,
            evidence={"distances": distances},
        )
    ]


RULE = Rule(
    code="KV216",
    page=Page(
        symptoms=("training loss too good", "model can't use what lies far back", "window model behaves like a full one", "scores leak"),
        checks="One token, or one place of a layer's input, is changed at a time, in runs of equal shapes: whatever moves saw it.",
        matters="What a token may see is part of the model. A layer that sees more or less is another model, in training and in use.",
        lookalikes="Layers add up: with a window of w each, n layers see n times w - 1 places back, and that is no leak.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/transformers#48748", "vllm-project/vllm#51756"),
    ),
    ways=(
        Way(name="whole model", needs=frozenset({Capability.ALL_ROWS, Capability.FULL_ROWS}), check=whole, exact=True),
        Way(name="layer by layer", needs=frozenset({Capability.MODULE}), check=layers, exact=True),
    ),
)
