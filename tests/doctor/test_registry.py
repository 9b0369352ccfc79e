"""Which rules are meant by what somebody writes."""

from __future__ import annotations

from typing import Any

import pytest

from kvpact.doctor import check_engine, parametrize_with_checks
from kvpact.doctor.checks import checks
from kvpact.doctor.errors import UnknownRule
from kvpact.doctor.registry import all_rules, named, select
from scripted import Scripted


def codes(wanted: Any = (), ignored: Any = ()) -> list[str]:
    return [rule.code for rule in select(wanted, ignored)]


@pytest.mark.parametrize("wanted", ["KV101,KV205", "kv101, KV205", "KV101 KV205,", ["KV101", "KV205"], ["KV101,KV205"]])
def test_several_rules_are_written_as_one_text_or_as_many(wanted: Any) -> None:
    assert codes(wanted) == ["KV001", "KV101", "KV205"]


def test_a_text_is_no_list_of_letters() -> None:
    assert codes("KV1") == ["KV001", *(rule.code for rule in all_rules() if rule.code.startswith("KV1"))]
    assert codes("future-visible") == ["KV001", "KV201"]


def test_what_is_ignored_is_written_the_same_way() -> None:
    assert codes("KV1,KV2", "KV10,KV2") == ["KV001"]


@pytest.mark.parametrize("nothing", ["", ",", (), [""]])
def test_nothing_written_is_every_rule(nothing: Any) -> None:
    assert codes(nothing, nothing) == [rule.code for rule in all_rules()]


def test_a_word_that_fits_nothing_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownRule, match="'future-visable'") as refused:
        select("KV101,future-visable")
    assert refused.value.hint.startswith("did you mean future-visible?")


@pytest.mark.parametrize(("word", "near"), [("301", "KV301"), ("future", "future-visible"), ("kv40l0", "KV4")])
def test_a_word_that_is_no_rules_leads_to_one(word: str, near: str) -> None:
    with pytest.raises(UnknownRule) as refused:
        named(word)
    assert refused.value.hint.startswith(f"did you mean {near}")
    assert named("kv301") is named("trim-not-applied")


def test_no_hint_leads_to_a_code_that_has_no_rule_yet() -> None:
    with pytest.raises(UnknownRule) as refused:
        select(["latency-growth"])
    assert refused.value.hint == "kvpact doctor rules lists them all"


def test_every_door_takes_a_text() -> None:
    report = check_engine(Scripted(), select="KV101,KV103", ignore="KV103")
    assert [result.code for result in report.results] == ["KV001", "KV101"]
    assert [check.rule.code for check in checks(Scripted, select="KV101,KV103", ignore="KV103")] == ["KV001", "KV101"]
    (mark,) = [parametrize_with_checks(Scripted, select="KV101,KV103", ignore="KV103").mark]
    assert [parameter.values[0].rule.code for parameter in mark.args[1]] == ["KV001", "KV101"]
