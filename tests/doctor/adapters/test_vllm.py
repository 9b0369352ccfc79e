"""The adapter of vLLM, on a stand-in for its interface: vLLM itself is too large for the environment of the tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvpact.doctor.adapters.vllm import Vllm
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.resolve import Options, resolve
from kvpact.doctor.target import Capability, Setting
from served import Toy

TOKENS = tuple(range(20, 60))


class StandIn:
    """vllm.LLM as of 0.32: prompt log-probabilities begin with None, each entry tells of its own token, and with them no hit is taken."""

    def __init__(self, vocab: int, **asked: Any) -> None:
        self.asked = asked
        self.toy = Toy(vocab)
        self.calls: list[tuple[int, bool]] = []
        model = SimpleNamespace(
            get_vocab_size=lambda: vocab,
            max_model_len=512,
            get_sliding_window=lambda: None,
            hf_text_config=SimpleNamespace(model_type="llama"),
            dtype="torch.float32",
        )
        self.llm_engine = SimpleNamespace(vllm_config=SimpleNamespace(model_config=model, cache_config=SimpleNamespace(block_size=16)))

    def generate(self, prompts: Sequence[Mapping[str, Any]], params: Any, use_tqdm: bool) -> list[Any]:
        self.calls.append((len(prompts), params.prompt_logprobs is not None))
        return [self._answer(prompt["prompt_token_ids"], prompt["cache_salt"], params) for prompt in prompts]

    def _answer(self, tokens: list[int], salt: str, params: Any) -> Any:
        row, cached = self.toy.row(tokens, salt)
        told = None
        if params.prompt_logprobs is not None:
            stops = range(1, len(tokens))
            told = [None, *(self._told(self.toy.row(tokens[:stop], f"{salt} prompt")[0], params, tokens[stop]) for stop in stops)]
        drawn = int(np.argmin(row))  # as unlikely as can be
        return SimpleNamespace(
            outputs=[SimpleNamespace(logprobs=[self._told(row, params, drawn)])], prompt_logprobs=told, num_cached_tokens=cached
        )

    def _told(self, row: np.ndarray, params: Any, also: int) -> dict[int, Any]:
        order = np.argsort(-row)
        shown = order if params.logprobs == -1 else order[: params.logprobs]
        rank = {int(token): place + 1 for place, token in enumerate(order)}
        return {int(token): SimpleNamespace(logprob=float(row[token]), rank=rank[int(token)]) for token in {*shown.tolist(), also}}


def target(monkeypatch: pytest.MonkeyPatch, vocab: int = 300, *, apart: bool = True) -> Vllm:
    """apart: engines compute in processes of their own."""
    module = ModuleType("vllm")
    module.LLM = lambda model, dtype, **asked: StandIn(vocab, **asked)  # type: ignore[attr-defined]
    module.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    module.__version__ = "0"  # type: ignore[attr-defined]
    module.envs = SimpleNamespace(VLLM_ENABLE_V1_MULTIPROCESSING=apart)  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "vllm", module)
    return Vllm("folder")


def test_each_row_belongs_to_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    session = target(monkeypatch).open(Setting())
    rows = [*session.feed({"a": TOKENS[:5]})["a"], *session.feed({"a": TOKENS[5:6]})["a"], *session.feed({"a": TOKENS[6:9]})["a"]]
    expected = [Toy().row(TOKENS[:stop], "")[0].astype(np.float32) for stop in range(1, 10)]
    assert [row.tobytes() for row in rows] == [row.tobytes() for row in expected]


def test_the_last_row_comes_from_a_request_that_may_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    examined = target(monkeypatch)
    examined.begin()
    cached = []
    for reuse in (True, True, False):
        session = examined.open(Setting(reuse=reuse))
        session.feed({"a": TOKENS})
        cached.append(session.cached_tokens("a"))
    examined.begin()
    session = examined.open(Setting())
    session.feed({"a": TOKENS})
    assert [*cached, session.cached_tokens("a")] == [0, 32, 0, 0]


def test_contexts_of_one_feed_go_to_the_engine_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    examined = target(monkeypatch)
    examined.open(Setting()).feed({"a": TOKENS, "b": TOKENS[:3], "c": TOKENS[:1]})
    assert examined._llm.calls == [(3, False), (2, True)]


def test_of_a_large_vocabulary_the_likeliest_are_shown_and_the_drawn_token_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    examined = target(monkeypatch, vocab=5000)
    (row,) = examined.open(Setting()).feed({"a": TOKENS[:1]})["a"]
    whole, _ = Toy(5000).row(TOKENS[:1], "")
    assert np.array_equal(np.flatnonzero(~np.isnan(row)), np.sort(np.argsort(-whole)[:100]))
    assert not examined.can(Capability.FULL_ROWS)
    assert target(monkeypatch).can(Capability.FULL_ROWS, Capability.ALL_ROWS)


def test_engines_of_one_process_have_no_glass_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the second would take the first one's parallel groups."""
    assert target(monkeypatch).can(Capability.GLASS)
    assert not target(monkeypatch, apart=False).can(Capability.GLASS)


def test_without_vllm_the_target_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(TargetUnusable, match="vLLM is not installed"):
        resolve("vllm:folder", Options())
