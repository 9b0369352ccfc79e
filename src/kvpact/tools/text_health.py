"""Signs of a broken context in an answer: loops, repetition, tokens that don't belong, a second half that drifts.

A finding says what is there, not why: a small model under greedy decoding loops by itself, and that is a finding as well.
Thresholds lie above everything in the healthy texts of the tests (prose, code, licences), whose highest figures they name.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

# A row of dashes or blanks can be a run of one token; the healthy texts' longest is 4.
LEAST_RUN = 10
# A unit said three times or more at the end, and long enough not to be "no, no, no".
LEAST_REPEATS = 3
LEAST_LOOP_TOKENS = 16
# Share of the second half's 4-grams that say a 4-gram of it again.
NGRAM = 4
LEAST_HALF = 24
MOST_REPEATED = 0.6
# A letter of another script belongs when there is more of it than this share of the letters.
LEAST_SCRIPT_SHARE = 0.1
# Among this many words one after the other, so many that are no words of any language written in Latin letters.
BURST_WORDS = 8
BURST_NONWORDS = 5

_WHITE = "\t\n\r\f\v"
# Written together as a matter of course: Japanese mixes three scripts, formulas mix Greek letters into any.
_SAME_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "HANGUL": "CJK", "BOPOMOFO": "CJK", "FULLWIDTH": "CJK"}
_ANYWHERE = frozenset(
    {"GREEK", "MICRO", "FEMININE", "MASCULINE", "MODIFIER", "MATHEMATICAL", "DOUBLE-STRUCK", "SCRIPT", "BLACK-LETTER", "OHM"}
)
_CONSONANTS = re.compile(r"[bcdfghjklmnpqrstvwxz]{6}", re.IGNORECASE)
_LETTERS = re.compile(r"[a-z]{5,}", re.IGNORECASE)
_VOWELS = frozenset("aeiouyAEIOUY")
_SYMBOLS = re.compile(r"[!-/:-@\[-`{-~]{6,}")


@dataclass(frozen=True, kw_only=True)
class HealthFinding:
    """detector: its name. unit: of start and end, "token" or "character" (half-open). figures: what was measured, by name."""

    detector: str
    message: str
    unit: str
    start: int
    end: int
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stability:
    """first_divergence: index of the first different character; None for equal texts.

    second_half_equal: share, 0 to 1, of the places in the second half of the longer text that hold the same character in both.
    """

    first_divergence: int | None
    second_half_equal: float


def examine(token_ids: Sequence[int], text: str, special_ids: frozenset[int] = frozenset()) -> tuple[HealthFinding, ...]:
    """Every detector over one answer. special_ids: tokens that may only end it."""
    ids = list(token_ids)
    while ids and ids[-1] in special_ids:
        ids.pop()
    found = [single_token_loop(ids), repetition(ids), special_inside(ids, special_ids)]
    found += [detect(text) for detect in TEXT_DETECTORS]
    return tuple(finding for finding in found if finding is not None)


def compare(text_a: str, text_b: str) -> Stability:
    """How far two answers to one prompt agree, character by character, and what their second half still shares."""
    if text_a == text_b:
        return Stability(first_divergence=None, second_half_equal=1.0)
    total = max(len(text_a), len(text_b))
    same = [a == b for a, b in zip(text_a, text_b, strict=False)] + [False] * abs(len(text_a) - len(text_b))
    second = same[total // 2 :]
    return Stability(first_divergence=same.index(False), second_half_equal=sum(second) / len(second))


def single_token_loop(token_ids: Sequence[int], least: int = LEAST_RUN) -> HealthFinding | None:
    """One token `least` times or more without a break."""
    start, length, position = 0, 0, 0
    for _, run in groupby(token_ids):
        size = sum(1 for _ in run)
        if size > length:
            start, length = position, size
        position += size
    if length < least:
        return None
    token = token_ids[start]
    message = f"token {token} comes {length} times without a break"
    return HealthFinding(
        detector="single-token-loop",
        message=message,
        unit="token",
        start=start,
        end=start + length,
        figures={"token_id": token, "times": length},
    )


def repetition(token_ids: Sequence[int]) -> HealthFinding | None:
    """An answer that ends in a loop, or else a second half that mostly says itself again."""
    return _loop_at_end(token_ids) or _repeated_ngrams(token_ids)


def _loop_at_end(token_ids: Sequence[int]) -> HealthFinding | None:
    """The longest end that is LEAST_REPEATS or more of one unit; the last one may be cut short.

    Read backwards, an end is a prefix, and the failure function (Knuth, Morris, Pratt) gives each prefix's period in linear time.
    """
    backwards = list(reversed(token_ids))
    failure = [0] * len(backwards)
    best, unit = 0, 0
    for i in range(1, len(backwards)):
        k = failure[i - 1]
        while k and backwards[i] != backwards[k]:
            k = failure[k - 1]
        failure[i] = k + (backwards[i] == backwards[k])
        length, period = i + 1, i + 1 - failure[i]
        if length >= max(LEAST_REPEATS * period, LEAST_LOOP_TOKENS):
            best, unit = length, period
    if not best:
        return None
    total = len(token_ids)
    message = f"the last {best} tokens are one unit of {unit} tokens, {best / unit:.1f} times"
    figures = {"unit_tokens": unit, "repeats": best / unit, "tokens": best}
    return HealthFinding(detector="repetition", message=message, unit="token", start=total - best, end=total, figures=figures)


def _repeated_ngrams(token_ids: Sequence[int]) -> HealthFinding | None:
    start = len(token_ids) // 2
    half = token_ids[start:]
    if len(half) < LEAST_HALF:
        return None
    ngrams = [tuple(half[i : i + NGRAM]) for i in range(len(half) - NGRAM + 1)]
    share = 1 - len(set(ngrams)) / len(ngrams)
    if share <= MOST_REPEATED:
        return None
    message = f"{share:.0%} of the second half's runs of {NGRAM} tokens were said in it before"
    return HealthFinding(
        detector="repetition",
        message=message,
        unit="token",
        start=start,
        end=len(token_ids),
        figures={"repeated_share": share, "ngrams": len(ngrams)},
    )


def special_inside(token_ids: Sequence[int], special_ids: frozenset[int]) -> HealthFinding | None:
    """A special token before the answer's end. token_ids: without special tokens that end it."""
    places = [i for i, token in enumerate(token_ids) if token in special_ids]
    if not places:
        return None
    message = f"{len(places)} special tokens inside the answer, the first is token {token_ids[places[0]]}"
    return HealthFinding(
        detector="stray-token", message=message, unit="token", start=places[0], end=places[-1] + 1, figures={"special_tokens": len(places)}
    )


def stray_characters(text: str) -> HealthFinding | None:
    """Replacement and control characters, private and unassigned ones: nothing that a sane answer holds."""
    places = [i for i, c in enumerate(text) if c == "\ufffd" or (unicodedata.category(c) in ("Cc", "Co", "Cn", "Cs") and c not in _WHITE)]
    if not places:
        return None
    replaced = text.count("\ufffd")
    message = f"{len(places)} characters that are no text, {replaced} of them bytes that are not UTF-8; the first is {text[places[0]]!a}"
    figures = {"characters": len(places), "replacements": replaced}
    return HealthFinding(detector="stray-token", message=message, unit="character", start=places[0], end=places[-1] + 1, figures=figures)


def isolated_script(text: str) -> HealthFinding | None:
    """A few letters of a script that the rest of the text is not written in. Greek may stand anywhere, as in a formula."""
    scripts = [_script(c) if c.isalpha() else None for c in text]
    counts = Counter(script for script in scripts if script and script not in _ANYWHERE)
    letters = sum(counts.values())
    strays = {script: n for script, n in counts.items() if n < LEAST_SCRIPT_SHARE * letters}
    if not strays:
        return None
    places = [i for i, script in enumerate(scripts) if script in strays]
    names = ", ".join(sorted(strays)).lower()
    message = f"{len(places)} of {letters} letters are {names}, the first {text[places[0]]!r}"
    figures = {"letters": letters, "stray_letters": len(places)}
    return HealthFinding(detector="stray-token", message=message, unit="character", start=places[0], end=places[-1] + 1, figures=figures)


def _script(letter: str) -> str:
    name = unicodedata.name(letter, "UNKNOWN").split(" ")[0]
    return _SAME_SCRIPT.get(name, name)


def nonword_burst(text: str) -> HealthFinding | None:
    """Words that nobody could say, or heaps of different symbols, close together."""
    words = list(re.finditer(r"\S+", text))
    flags = [_is_nonword(word.group()) for word in words]
    counts = [sum(flags[i : i + BURST_WORDS]) for i in range(max(1, len(flags) - BURST_WORDS + 1))]
    most = max(counts)
    if most < BURST_NONWORDS:
        return None
    first = counts.index(most)
    strays = [word for word, flag in zip(words[first:], flags[first : first + BURST_WORDS], strict=False) if flag]
    start, end = strays[0].start(), strays[-1].end()
    message = f"{most} of {BURST_WORDS} words in a row are no words: {text[start:end][:60]!r}"
    return HealthFinding(detector="stray-token", message=message, unit="character", start=start, end=end, figures={"nonwords": most})


def _is_nonword(word: str) -> bool:
    """Letters without a vowel or with six consonants in a row (constants in capitals are names), or six symbols of four kinds."""
    letters = _LETTERS.findall(word)
    unsayable = any(not run.isupper() and (not _VOWELS & set(run) or _CONSONANTS.search(run)) for run in letters)
    return unsayable or any(len(set(run)) >= 4 for run in _SYMBOLS.findall(word))


#: The detectors that read text alone.
TEXT_DETECTORS: tuple[Callable[[str], HealthFinding | None], ...] = (stray_characters, isolated_script, nonword_burst)
