"""The long/short pair: what counts as a difference, and what a baseline holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvpact.errors import InvalidParameter, UnreadableFile
from kvpact.tools.regress import (
    PAIR,
    Answer,
    Report,
    compare_ways,
    compare_with_baseline,
    examine,
    first_divergence,
    inspect_texts,
    read_baseline,
    record_baseline,
    second_half,
)

PROMPTS = {"long": {"prompt_token_ids": list(range(40))}, "short": {"prompt_token_ids": [7]}}
HEALTHY = {40: tuple(range(100, 140)), 1: tuple(range(200, 230))}
SETTINGS = {"max_tokens": 64, "ops": "torch"}

#: Gets an answer's tokens, the prompt's length, its place in the batch and the batch's size; returns what is answered instead.
Fault = Callable[[tuple[int, ...], int, int, int], tuple[int, ...]]


class Doubled:
    """Answers by a table, so that a test can plant one fault; remembers which batches it was given."""

    def __init__(self, fault: Fault = lambda tokens, *_: tokens) -> None:
        self.fault = fault
        self.batches: list[list[tuple[int, str]]] = []
        self.tokenizer = SimpleNamespace(eos_token_ids=frozenset({2}))

    def generate(self, prompts: list[Mapping[str, Any]], sampling_params: Any = None, *, use_tqdm: bool = True) -> list[Any]:
        assert sampling_params.greedy
        lengths = [len(prompt["prompt_token_ids"]) for prompt in prompts]
        self.batches.append([(length, str(prompt["cache_salt"])) for length, prompt in zip(lengths, prompts, strict=True)])
        tokens = [self.fault(HEALTHY[length], length, place, len(lengths)) for place, length in enumerate(lengths)]
        return [SimpleNamespace(outputs=[SimpleNamespace(text="Paris.", token_ids=ids)], num_cached_tokens=0) for ids in tokens]


def answer(way: str, *token_ids: int, prompt: str = "short", text: str = "Paris.") -> Answer:
    return Answer(prompt=prompt, way=way, text=text, token_ids=token_ids, num_cached_tokens=0)


def spoil_second_half(tokens: tuple[int, ...], length: int, place: int, size: int) -> tuple[int, ...]:
    """The long text's end goes wrong when it stands behind another in a batch."""
    return (*tokens[:30], *range(900, 910)) if length == 40 and place == 1 else tokens


def test_a_healthy_model_has_no_findings() -> None:
    report = examine(Doubled(), PROMPTS)
    assert report.healthy
    assert [(a.prompt, a.way) for a in report.answers] == [
        ("long", "alone"),
        ("short", "alone"),
        ("long", "together, long first"),
        ("short", "together, long first"),
        ("short", "together, short first"),
        ("long", "together, short first"),
        ("long", "together, after a prefix hit"),
        ("short", "together, after a prefix hit"),
    ]


def test_both_orders_run_and_only_the_last_way_may_hit() -> None:
    llm = Doubled()
    examine(llm, PROMPTS)
    assert [[length for length, _ in batch] for batch in llm.batches] == [[40], [1], [40, 1], [1, 40], [40, 1]]
    salts = [{salt for _, salt in batch} for batch in llm.batches]
    assert all(len(salt) == 1 for salt in salts)
    assert len(set().union(*salts[:4])) == 4
    assert salts[4] == salts[2]


def test_a_fault_in_one_order_is_found_in_that_order_alone() -> None:
    report = examine(Doubled(spoil_second_half), PROMPTS)
    assert [(f.check, f.prompt, f.way) for f in report.findings] == [
        ("differs", "long", "together, short first"),
        ("second-half", "long", "together, short first"),
    ]
    assert "at token 30 of 40: token id 900, not token id 130" in report.findings[0].message


def test_a_difference_that_heals_leaves_the_second_half_alone() -> None:
    found = compare_ways([answer("alone", 1, 2, 3, 4), answer("together", 9, 2, 3, 4)])
    assert [finding.check for finding in found] == ["differs"]


def test_an_answer_that_ends_early_differs() -> None:
    found = compare_ways([answer("alone", 1, 2, 3, 4), answer("together", 1, 2, 3)])
    assert "at token 3 of 4: the end, not token id 4" in found[0].message


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [((), (), None), ((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((1, 2), (1,), 1), ((), (1,), 0)],
)
def test_the_first_divergence_is_exact(expected: tuple[int, ...], found: tuple[int, ...], place: int | None) -> None:
    assert first_divergence(expected, found) == place


def test_the_second_half_of_an_odd_number_is_the_longer_one() -> None:
    assert second_half((1, 2, 3, 4, 5)) == (3, 4, 5)
    assert second_half(()) == ()


def test_a_loop_is_found_in_whichever_way_it_comes() -> None:
    looping = answer("together", *([5] * 40), text="the the the " * 13)
    found = inspect_texts([answer("alone", 1, 3, 4), looping], frozenset({2}))
    assert found
    assert {(finding.check, finding.way) for finding in found} == {("text", "together")}


def test_one_prompt_is_no_pair() -> None:
    with pytest.raises(InvalidParameter):
        examine(Doubled(), {"long": PROMPTS["long"]})


def test_the_pair_is_long_and_short() -> None:
    assert len(PAIR["long"].split()) > 200
    assert len(PAIR["short"].split()) < 10


@pytest.fixture
def report() -> Report:
    return examine(Doubled(), PROMPTS)


@pytest.fixture
def baseline(report: Report, tmp_path: Path) -> Path:
    file = tmp_path / "baseline.json"
    record_baseline(report, file, model="tiny", settings=SETTINGS)
    return file


def test_a_baseline_read_back_is_what_was_answered_alone(report: Report, baseline: Path) -> None:
    recorded = read_baseline(baseline, model="tiny", settings=SETTINGS)
    assert recorded == {"long": HEALTHY[40], "short": HEALTHY[1]}
    assert compare_with_baseline(report, recorded).healthy


def test_an_answer_that_changed_since_the_baseline_is_found(report: Report) -> None:
    changed = compare_with_baseline(report, {"long": HEALTHY[40], "short": (200, 1)})
    assert [(finding.check, finding.prompt) for finding in changed.findings] == [("baseline", "short")]
    assert "from the baseline at token 1 of 2: token id 201, not token id 1" in changed.findings[0].message


def test_a_prompt_that_was_never_recorded_is_found(report: Report) -> None:
    assert [finding.message for finding in compare_with_baseline(report, {"long": HEALTHY[40]}).findings] == ["is not in the baseline"]


@pytest.mark.parametrize(("model", "ops"), [("other", "torch"), ("tiny", "reference")])
def test_a_baseline_of_something_else_is_refused(baseline: Path, model: str, ops: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        read_baseline(baseline, model=model, settings={**SETTINGS, "ops": ops})
    assert "was recorded from" in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": "regress-baseline", "schema_version": 99}'])
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "baseline.json"
    file.write_text(text)
    with pytest.raises(UnreadableFile):
        read_baseline(file, model="tiny", settings=SETTINGS)


def test_a_baseline_without_its_answers_is_refused(baseline: Path) -> None:
    document = json.loads(baseline.read_text())
    del document["answers"]["short"]["token_ids"]
    baseline.write_text(json.dumps(document))
    with pytest.raises(UnreadableFile):
        read_baseline(baseline, model="tiny", settings=SETTINGS)


def test_a_baseline_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile):
        read_baseline(tmp_path / "none.json", model="tiny", settings=SETTINGS)
    with pytest.raises(UnreadableFile):
        record_baseline(Report(answers=(), findings=()), tmp_path / "no" / "folder.json", model="tiny", settings=SETTINGS)
