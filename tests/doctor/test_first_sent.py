"""A server that nothing keeps from hits: fresh prompts are asked again, and beside others that part from them by one token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from kvpact.doctor.adapters.server.target import connect
from kvpact.doctor.finding import Outcome, Result
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from prefix_cached import PrefixCached
from served import Toy, serving
from served_faults import Cached


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_folder("llama"), attn_implementation="eager").eval()


def kv104(url: str) -> Result:
    return examine(connect(url), select(("KV001", "KV104"))).results[1]


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("fault", ["one-too-long", "stored-one-short"])
def test_a_boundary_is_found_with_no_way_to_be_cold(model: Any, fault: str, usage: bool) -> None:
    """Twice: what the first examination left in the cache must not hide it from the second."""
    with serving(PrefixCached(model, fault), salt=False, usage=usage) as served:
        for _ in range(2):
            result = kv104(served.url)
            assert result.outcome is Outcome.FAILED
            assert "the token that differs is not seen" in result.reason
            program = result.findings[0].program
            assert program is not None
            assert program.length <= 12


def test_a_kept_tail_is_found_though_it_spoils_repeats(model: Any) -> None:
    with serving(PrefixCached(model, "tail-kept"), salt=False) as served:
        assert kv104(served.url).outcome is Outcome.FAILED


def test_shifted_positions_behind_a_partial_hit_are_found(model: Any) -> None:
    """Prompts that come again whole are right, and each token is seen."""
    with serving(PrefixCached(model, "shifted"), salt=False) as served:
        report = examine(connect(served.url), select(("KV001", "KV104", "KV310")))
    found = {result.code: result.findings for result in report.results if result.outcome is Outcome.FAILED}
    assert "another row than prompts like it that share none" in found["KV104"][0].what
    assert found["KV104"][0].explained_by is None
    assert all(finding.explained_by == "KV104" for finding in found.get("KV310", ())), "nothing keeps its runs from hits"


@pytest.mark.parametrize("engine", ["model", "toy"])
@pytest.mark.parametrize("usage", [True, False])
def test_a_healthy_server_passes_each_time(model: Any, engine: str, usage: bool) -> None:
    with serving(PrefixCached(model) if engine == "model" else Toy(), salt=False, usage=usage) as served:
        assert [kv104(served.url).outcome for _ in range(2)] == [Outcome.PASSED] * 2


def test_tokens_that_move_a_noisy_row_by_little_are_not_told_alike() -> None:
    """Hits round by 0.02 nats, and a token 17 back moves the row by hardly more."""
    with serving(Cached(noise=0.02), salt=False) as served:
        assert Outcome.FAILED not in [kv104(served.url).outcome for _ in range(5)]


class OtherAgain(Toy):
    """A prompt that was sent before gets another row."""

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        row, hit = super().row(tokens, salt)
        return (super().row((*tokens, 9), salt)[0] if hit else row), hit


class LastOnly(Toy):
    """Rows follow the last token alone, and nothing that is before it can be told."""

    def row(self, tokens: Sequence[int], salt: str) -> tuple[np.ndarray, int]:
        return super().row(tokens[-1:], salt)[0], super().row(tokens, salt)[1]


def test_a_hit_that_changes_the_answer_is_found_beside_the_first_answer() -> None:
    with serving(OtherAgain(), salt=False) as served:
        result = kv104(served.url)
    assert result.outcome is Outcome.FAILED
    assert "gets another row when it comes again" in result.reason
    assert "nobody had sent its beginning" in result.findings[0].expected


def test_rows_that_no_earlier_token_moves_are_no_finding() -> None:
    with serving(LastOnly(), salt=False) as served:
        assert kv104(served.url).outcome is Outcome.INCONCLUSIVE


def test_a_server_that_hits_nothing_is_not_passed() -> None:
    with serving(Toy(block_size=4096), salt=False) as served:
        result = kv104(served.url)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "nothing was taken over" in result.reason


def test_words_of_several_tokens_are_not_passed(model: Any) -> None:
    """A hit of one token too many leaves the rest of the word."""
    with serving(PrefixCached(model, "one-too-long"), salt=False, ids=False) as served:
        result = kv104(served.url)
    assert result.outcome is Outcome.INCONCLUSIVE
    assert "several tokens" in result.reason
