"""Contexts that are fed in one call must get what each would get alone."""

from __future__ import annotations

from dataclasses import replace

from kvpact.doctor.cases import Case, Words, lengths
from kvpact.doctor.compare import against
from kvpact.doctor.continuation import answered_together, ended_early
from kvpact.doctor.exam import Exam
from kvpact.doctor.finding import Verdict
from kvpact.doctor.lineage import begun, fed_before, in_words
from kvpact.doctor.program import Advance, Program, Submit
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.target import Capability

_DECODED = 4
_CAUSE = "rows of a batch share something that is each row's own: padding, positions, a length, an order"
_CURE = "print mask, positions and cached length of each row of the batch beside those of the row alone; all must agree"


def _case(program: Program) -> str:
    sizes = begun(program)
    calls = [(index, dict(step.counts)) for index, step in enumerate(program.steps) if isinstance(step, Advance)]
    for index, counts in calls:
        old = fed_before(program, index)
        new = sorted(counts.keys() - old.keys())
        if new and len(new) < len(counts):
            longest = max(old[name] for name in counts.keys() & old.keys())
            return f"a prompt of {counts[new[0]]} joins a context that has {in_words(longest)}"
    how = "are decoded together" if sum(len(counts) > 1 for _, counts in calls) > 1 else "come in one call"
    since = ", after a batch of other lengths" if program.before else ""
    return f"prompts of {' and '.join(map(str, sizes.values()))} tokens {how}{since}"


_WORDS = Words(
    code="KV102",
    what="a row of a batch parts from the same context alone at position {position}, when {case}",
    case=_case,
    expected="the log-probabilities of the same tokens in the same pieces, in calls of their own",
    cause=_CAUSE,
    cure=_CURE,
)


def together(exam: Exam) -> Verdict:
    """Prompts of different lengths start in one call, and are decoded together: beyond 16, 32 and 64 columns, where buffers grow, too."""
    some = lengths(exam, (5, 12, 28, 33, 60))
    cases = [_begun(exam, length, (max(1, length // 3), min(length + 4, max(some)))) for length in some]
    first, other = _begun(exam, 5, (1, 9)), _begun(exam, 9, (5, 2))
    again = ("other lengths come in a batch of the same shape", lambda tag: replace(other[1](tag), before=(first[1](f"{tag} before"),)))
    pieces = [_begun(exam, 6, (2, 11), piece=3)] if exam.target.can(Capability.CHUNK) else []
    return against(exam, [*cases, again, *pieces], _WORDS)


def equally_long(exam: Exam) -> Verdict:
    """Where rows of different lengths are refused."""
    return against(exam, [_begun(exam, length, (length, length)) for length in lengths(exam, (5, 33))], _WORDS)


def _begun(exam: Exam, length: int, others: tuple[int, ...], piece: int = 1) -> Case:
    """piece: tokens of each that come at once, after the prompts."""
    sizes = {"a": length} | dict(zip("bc", others, strict=False))

    def build(tag: str) -> Program:
        given = [Submit(name, exam.tokens(f"{tag} {name}", size + _DECODED * piece)) for name, size in sizes.items()]
        steps = [Advance(tuple((name, piece) for name in sizes))] * _DECODED
        return Program(steps=(*given, Advance(tuple(sizes.items())), *steps))

    return f"prompts of {' and '.join(map(str, sizes.values()))} tokens are decoded together", build


def joining(exam: Exam) -> Verdict:
    """A new prompt comes in while another context decodes."""

    def build(tag: str) -> Program:
        steps = (
            Submit("a", exam.tokens(f"{tag} a", 9 + 4)),
            Advance((("a", 9),)),
            Submit("b", exam.tokens(f"{tag} b", 14)),
            Advance((("a", 1), ("b", 11))),
            Advance((("b", 1), ("a", 1))),
            Advance((("b", 2), ("a", 2))),
        )
        return Program(steps=steps)

    return against(exam, [("a prompt joins a decoding context", build)], _WORDS)


def own_answers(exam: Exam) -> Verdict:
    return answered_together(exam, "KV102", _CAUSE, _CURE)


def some_end(exam: Exam) -> Verdict:
    return ended_early(exam, "KV102")


RULE = Rule(
    code="KV102",
    page=Page(
        symptoms=(
            "batched answers differ from single ones",
            "a long and a short prompt together give garbage",
            "only some rows of a batch are garbage",
            "the longest row is fine and the shorter ones are not",
            "answers depend on what else runs",
        ),
        checks="Contexts of different lengths, or of equal ones where no others are taken, are fed in one call and decoded together, by "
        "ones and in pieces; each is compared with itself in calls of its own. Of an engine that answers by itself and declares `eos`, "
        "answers that end at different steps of one call, too.",
        matters="A batch is a way to save time. Whoever shares it must not be able to tell.",
        lookalikes="Kernels choose their order of sums by the size of the batch: that stays near the floor of KV001. "
        "A mixture of experts with a capacity drops tokens when a batch is full, by design.",
        causes=(
            (_CAUSE, _CURE),
            (
                "one position for all rows, counted with the padding",
                "count each row's positions along its own mask: attention_mask.cumsum(-1) - 1",
            ),
        ),
        seen_in=("unslothai/unsloth#3699", "ml-explore/mlx-lm#1097", "Blaizzy/mlx-vlm#1946"),
    ),
    ways=(
        Way(name="together", needs=frozenset({Capability.BATCH}), check=together),
        Way(name="equally long", needs=frozenset({Capability.EVEN_BATCH}), check=equally_long),
        Way(name="own answers", needs=frozenset({Capability.GENERATE, Capability.BATCH}), check=own_answers),
        Way(name="some end", needs=frozenset({Capability.GENERATE, Capability.BATCH}), check=some_end),
        Way(name="joining", needs=frozenset({Capability.BATCH, Capability.RAGGED}), check=joining),
    ),
)
