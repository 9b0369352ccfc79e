"""New entries lie behind the old ones, where the length says."""

from __future__ import annotations

from itertools import pairwise

from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Finding, Verdict, Where, failed, inconclusive, passed
from kvpact.doctor.life import entries_after_feeds, exact_entries, state_way
from kvpact.doctor.noise import same_bits
from kvpact.doctor.program import Program, feed
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_EXPECTED = "old entries left as they are, and each new one at its own position"
_CAUSE = (
    "where to write is counted from something else than the context's length: a batch row, a chunk's start, the padded width or a stale"
    " copy"
)
_CURE = "compute write places in one function, from the number of computed tokens alone"


def append(exam: Exam) -> Verdict:
    """Entries before an append are the same bits after it."""
    if not exact_entries(exam):
        return inconclusive("entries are stored in a lossy format, which may be written anew")
    size, room = exam.target.block_size, exam.target.window or exam.target.max_len
    wanted = (3, 16) if size is None else (3, size - 1, size, size + 1)
    lengths = [length for length in wanted if 1 <= length < room - 3]
    for length in lengths:
        tokens = exam.tokens(f"append {length}", length + 3)
        program = Program(steps=feed("a", tokens, length, 1))
        stages = entries_after_feeds(exam, program)
        (whole,) = entries_after_feeds(exam, Program(steps=feed("a", tokens)))
        for before, after in pairwise(stages):
            for part, (old, new) in enumerate(zip(before, after, strict=True)):
                moved = [place for place in range(len(old)) if not same_bits(old[place], new[place])]
                # A token may well have an entry of zeros: it is missing only where the same tokens at once give another one.
                empty = [place for place in range(len(old), len(new)) if not new[place].any() and whole[part][place].any()]
                if moved or empty:
                    place = (moved or empty)[0]
                    got = (
                        f"the entry of position {place} {'changed' if moved else 'was not written'} when tokens from {len(old)} on were fed"
                    )
                    where = Where(request="a", position=place, layer=part // 2)
                    return failed(
                        Finding(
                            code="KV409",
                            what=got,
                            expected=_EXPECTED,
                            got=got,
                            where=where,
                            exact=True,
                            cause=_CAUSE,
                            cure=_CURE,
                            program=program,
                        )
                    )
    if not lengths:
        return inconclusive(f"a window of {room} tokens leaves no room for an append that drops nothing")
    return passed("an append leaves every entry before it as it was, and writes all of its own")


RULE = Rule(
    code="KV409",
    page=Page(
        symptoms=(
            "decode overwrites the prompt",
            "wrong after the second chunk",
            "text repeats or loses its last word",
            "only chunked prompts are wrong",
        ),
        checks=(
            "Where each step's entries were written against the state's table. Without that: entries before and after an append. Old "
            "ones must keep their bits, new ones must be those of the same tokens fed at once."
        ),
        matters=(
            "A write that starts early destroys the newest entry, one that starts late leaves a hole: both stay for the rest of the "
            "context."
        ),
        lookalikes="A window's ring writes over its oldest entries: that is its purpose.",
        causes=((_CAUSE, _CURE),),
        seen_in=("huggingface/text-generation-inference#2711",),
    ),
    ways=(
        state_way("KV409", expected=_EXPECTED, cause=_CAUSE, cure=_CURE),
        Way(name="append", needs=frozenset({Capability.ENTRIES, Capability.CHUNK}), check=append, exact=True, weightless=True),
    ),
)
