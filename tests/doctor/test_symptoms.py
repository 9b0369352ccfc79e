"""Words of a person lead to rules."""

from __future__ import annotations

import pytest

from kvpact.doctor.registry import all_rules
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.symptoms import search, stem, themes, words


def rule(code: str, *symptoms: str, checks: str = "nothing of note") -> Rule:
    page = Page(symptoms=symptoms, checks=checks, matters="", lookalikes="", causes=())
    return Rule(code=code, page=page, ways=(Way(name="w", needs=frozenset(), check=lambda exam: exam),))  # type: ignore[arg-type, return-value]


RULES = (
    rule("KV101", "the text repeats itself", "garbage after the prompt"),
    rule("KV205", "text of another user appears"),
    rule("KV401", "the server runs out of memory after a day"),
    rule("KV701", "each token takes longer than the one before", "throughput falls"),
    rule("KV108", "the same prompt has two answers"),
    rule("KV303", "quality drifts over a long conversation"),
)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ("repetition", "KV101"),
        ("it keeps repeating", "KV101"),
        ("looping", "KV101"),
        ("gibberish", "KV101"),
        ("nonsense output", "KV101"),
        ("slow", "KV701"),
        ("latency", "KV701"),
        ("OOM", "KV401"),
        ("out of memory", "KV401"),
        ("two answers", "KV108"),
        ("drifting", "KV303"),
        ("gets gradually worse", "KV303"),
        ("leaks another tenant's text", "KV205"),
    ],
)
def test_the_best_rule_for_what_one_sees_comes_first(asked: str, code: str) -> None:
    assert next(match.rule.code for match in search(asked, RULES)) == code


@pytest.mark.parametrize(
    ("asked", "codes"),
    [
        ("a long and a short prompt together give garbage", {"KV102", "KV202"}),
        ("the same input gave two answers", {"KV108", "KV303", "KV307"}),
        ("two answers", {"KV108"}),
        ("every token is slower than the last", {"KV408"}),
        ("repetition", {"KV101", "KV409"}),
        ("out of memory", {"KV401"}),
        ("someone else's conversation appears", {"KV205"}),
    ],
)
def test_what_the_accounts_tell_leads_to_the_rules_that_find_it(asked: str, codes: set[str]) -> None:
    assert codes <= {match.rule.code for match in search(asked, all_rules())[:4]}


def test_a_jump_at_a_length_leads_to_windows_and_sinks_first() -> None:
    first = [match.rule.code for match in search("perplexity jumps at 4096 tokens", all_rules())[:2]]
    assert set(first) == {"KV206", "KV207"}


def test_what_fits_far_worse_than_the_best_is_left_out() -> None:
    rules = (*RULES, rule("KV406", "a request hangs for ever"))
    assert [match.rule.code for match in search("throughput", rules)] == ["KV701"]
    assert {match.rule.code for match in search("speed", rules)} == {"KV701", "KV406"}


def test_the_symptom_that_fits_is_shown() -> None:
    assert search("garbage", RULES)[0].symptom == "garbage after the prompt"
    assert search("repeats", RULES)[0].symptom == "the text repeats itself"


def test_words_that_say_nothing_match_nothing() -> None:
    assert search("the of is", RULES) == []
    assert search("xylophone", RULES) == []
    assert search("", RULES) == []


def test_a_symptom_weighs_more_than_a_word_in_passing() -> None:
    passing = rule("KV203", "something else", checks="mentions throughput once")
    assert [match.rule.code for match in search("throughput", (passing, *RULES))][:2] == ["KV701", "KV203"]


def test_forms_of_a_word_are_one() -> None:
    assert len({stem(word) for word in ("repeat", "repeats", "repeated", "repeating")}) == 1
    assert list(words("Out-of-memory")) == [stem("memory")]
    assert themes("it loops and leaks") == {"Repetition", "Somebody else's text"}


@pytest.mark.parametrize("each", all_rules(), ids=lambda rule: rule.code)
def test_every_symptom_of_a_rule_leads_to_it(each: Rule) -> None:
    for symptom in each.page.symptoms:
        assert each.code in [match.rule.code for match in search(symptom, all_rules())][:3], symptom
