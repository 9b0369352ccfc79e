"""The detectors are silent on fifty answers of a real model, and each finds a fault that is planted in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvpact.tools.text_health import examine

DOCUMENT = json.loads((Path(__file__).parent / "data" / "smollm2_answers.json").read_text(encoding="utf-8"))
ANSWERS = DOCUMENT["answers"]
SPECIAL = frozenset(DOCUMENT["special_ids"])
every_answer = pytest.mark.parametrize("number", range(50))


def found(token_ids: list[int], text: str) -> set[str]:
    return {finding.detector for finding in examine(token_ids, text, SPECIAL)}


def test_there_are_fifty_different_answers_long_enough_to_go_wrong() -> None:
    assert len(ANSWERS) == len({answer["question"] for answer in ANSWERS}) == len({answer["text"] for answer in ANSWERS}) == 50
    assert DOCUMENT["temperature"] == 0.7
    lengths = sorted(len(answer["token_ids"]) for answer in ANSWERS)
    assert lengths[0] >= 16
    assert lengths[5] >= 60
    assert lengths[-1] == 80


@every_answer
def test_no_detector_fires_on_a_real_answer(number: int) -> None:
    answer = ANSWERS[number]
    assert examine(answer["token_ids"], answer["text"], SPECIAL) == ()


@every_answer
def test_a_fault_planted_in_the_same_answer_is_found_and_nothing_else(number: int) -> None:
    answer = ANSWERS[number]
    text = answer["text"]
    ids = [token for token in answer["token_ids"] if token not in SPECIAL]
    half, middle = len(text) // 2, len(ids) // 2
    assert found(ids + ids[-6:] * 4, text) == {"repetition"}
    assert found(ids[:middle] + ids[middle : middle + 12] * 6, text) == {"repetition"}
    assert found(ids[:middle] + [ids[middle]] * 12 + ids[middle:], text) == {"single-token-loop"}
    assert found(ids[:middle] + sorted(SPECIAL) + ids[middle:], text) == {"stray-token"}
    for garbage in (" xqzvk kjhgf bcdfg zxcvb qwrtp mnbvc ", " \ufffd\ufffd ", "的", " }{)(/$# %$#@&! ]|[)(*& ;:'!?/ ^~`$#@ "):
        assert found(ids, text[:half] + garbage + text[half:]) == {"stray-token"}
