"""From what one sees to the rules that look for it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvpact.doctor.rule import Rule

#: Words that people use for one thing; the first is how `docs/symptoms.md` heads it.
THEMES: Mapping[str, str] = {
    "Repetition": "repetition repeat repeated repeating loop looping stutter degenerate",
    "Garbage": "garbage gibberish nonsense incoherent scramble scrambled random rubbish broken wrong corrupt corrupted junk unreadable",
    "Drift": "drift drifting degrade degrades degraded worse quality gradually decay",
    "Two answers": "differ differs different difference inconsistent nondeterministic flaky unstable varies vary",
    "Somebody else's text": "leak leaks foreign another user users neighbour neighbor tenant secret privacy private cross mixed",
    "Forgetting": "forget forgets forgotten lost lose loses missing ignores ignored earlier beginning history",
    "Slow": "slow slower slowly latency speed throughput performance timeout stall hang hangs stuck wait recompile recompiles",
    "Memory": "memory oom ram gpu vram space pool exhausted full grows growth blocks allocation",
    "Crash": "crash crashes crashed exception error assert fails failure nan inf infinite",
    "Figures": "metric metrics usage count counter figures reported statistics hit rate cached_tokens dashboard",
}
_PHRASES = ((r"out[ -]of[ -]memory", "memory"), (r"(says|said) the same", "repeats"))
_SYNONYMS = {"repetition": "repeat", "parrot": "repeat", "hallucinate": "garbage", "hallucination": "garbage", "bleed": "leak"}
_IDLE_WORDS = "a an the is it its of in on to and or not no with my our we i be are was were has have as at by for from after when then"
_IDLE = frozenset(_IDLE_WORDS.split())
#: Of the best score: what fits less than this shares a word with it by chance.
_FAINT = 0.2
_SUFFIXES = ("ations", "ation", "ingly", "ings", "ing", "ies", "edly", "ed", "es", "s", "ly", "er")


@dataclass(frozen=True, kw_only=True)
class Match:
    """symptom: that of the rule's which fits best."""

    rule: Rule
    score: float
    symptom: str


def stem(word: str) -> str:
    """`repeating`, `repeats` and `repeated` as one. Crude, and enough for a page of words."""
    word = word.lower()
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    return word.rstrip("e") if len(word) > 3 else word


def words(text: str) -> Iterator[str]:
    """Stems that say something. Phrases that mean more than their words are put as one word first."""
    text = text.lower()
    for phrase, meant in _PHRASES:
        text = re.sub(phrase, meant, text)
    for word in re.findall(r"[a-z0-9_]+", text):
        if word not in _IDLE:
            yield stem(_SYNONYMS.get(word, word))


def themes(text: str) -> set[str]:
    """What a text is about, by its words."""
    said = set(words(text))
    return {theme for theme, stems in _THEME_STEMS.items() if said & stems}


_THEME_STEMS = {theme: frozenset(stem(word) for word in synonyms.split()) for theme, synonyms in THEMES.items()}


def search(text: str, rules: Sequence[Rule]) -> list[Match]:
    """Rules that the words lead to, the best first: words of a symptom weigh most, rare words more than common ones, and a
    word of the same theme counts for a part."""
    asked, about = list(dict.fromkeys(words(text))), themes(text)
    texts = {rule.code: _weighted(rule) for rule in rules}
    common = Counter(word for counted in texts.values() for word in counted)
    matches = []
    for rule in rules:
        counted = texts[rule.code]
        score = sum(counted[word] * math.log(1 + len(rules) / common[word]) for word in asked if word in counted)
        score += 0.75 * len(about & themes(" ".join(rule.page.symptoms)))
        if score > 0:
            best = max(rule.page.symptoms, key=lambda symptom: _fit(symptom, asked, about), default=rule.page.checks)
            matches.append(Match(rule=rule, score=score, symptom=best))
    best_score = max((match.score for match in matches), default=0.0)
    return sorted((match for match in matches if match.score >= _FAINT * best_score), key=lambda match: (-match.score, match.rule.code))


def _weighted(rule: Rule) -> dict[str, float]:
    page = rule.page
    weights: dict[str, float] = {}
    causes = [text for pair in page.causes for text in pair]
    for weight, parts in ((1.0, [page.checks, page.matters, page.lookalikes, *causes]), (2.0, [rule.name]), (3.0, page.symptoms)):
        for word in _all_words(parts):
            weights[word] = weight
    return weights


def _all_words(parts: Iterable[str]) -> set[str]:
    return {word for part in parts for word in words(part)}


def _fit(symptom: str, asked: Sequence[str], about: set[str]) -> tuple[int, int]:
    said = set(words(symptom))
    return sum(word in said for word in asked), len(about & themes(symptom))
