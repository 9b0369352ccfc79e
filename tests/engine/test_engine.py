"""The engine's behaviour: what ends a request, what a bad one disturbs (nothing), and what is held afterwards (nothing)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvpact.engine.engine import Engine
from kvpact.engine.outputs import RequestOutput
from kvpact.errors import DuplicateRequest, EmptyPrompt, InvalidParameter, PromptTooLong, RequestTooLarge
from kvpact.params import SamplingParams
from runs import BOUND, finish, prompt, rows_of, run, whole_rows
from tiny_models import EOS, VOCAB

MakeEngine = Callable[..., Engine]


def greedy(**options: object) -> SamplingParams:
    return SamplingParams(temperature=0, ignore_eos=True, **{"max_tokens": 6, **options})


def tokens(output: RequestOutput) -> list[tuple[int, ...]]:
    return [choice.token_ids for choice in output.outputs]


def test_a_request_ends_at_max_tokens_and_gives_every_block_back(make_engine: MakeEngine) -> None:
    output = run(make_engine("llama"), [prompt(20)], greedy())[0]
    assert output.outputs[0].finish_reason == "length"
    assert len(output.outputs[0].token_ids) == 6
    assert output.finished


def test_a_request_ends_at_max_model_len(make_engine: MakeEngine) -> None:
    output = run(make_engine("llama", max_model_len=24), [prompt(20)], greedy(max_tokens=None))[0]
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (4, "length")


def test_a_stop_token_ends_a_choice_and_stays_out_of_its_text(make_engine: MakeEngine) -> None:
    engine = make_engine("llama")
    free = run(engine, [prompt(20)], greedy())[0].outputs[0]
    stop = free.token_ids[2]
    first = free.token_ids.index(stop)
    stopped = run(engine, [prompt(20)], greedy(stop_token_ids=(stop,)))[0].outputs[0]
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.text == engine.tokenizer.decode(free.token_ids[:first])


def test_min_tokens_keeps_a_choice_from_stopping(make_engine: MakeEngine) -> None:
    engine = make_engine("llama")
    stop = run(engine, [prompt(20)], greedy())[0].outputs[0].token_ids[0]
    output = run(engine, [prompt(20)], greedy(stop_token_ids=(stop,), min_tokens=4))[0].outputs[0]
    assert len(output.token_ids) >= 4
    assert stop not in output.token_ids[:4]


def test_a_stop_string_over_two_tokens_cuts_the_text_before_it(make_engine: MakeEngine) -> None:
    engine = make_engine("llama")
    text = run(engine, [prompt(20)], greedy(max_tokens=12, logit_bias=_ascii()))[0].outputs[0].text
    stop = text[3:5]
    cut = text.index(stop)
    output = run(engine, [prompt(20)], greedy(max_tokens=12, logit_bias=_ascii(), stop=(stop,)))[0].outputs[0]
    assert output.text == text[:cut]
    assert (output.finish_reason, output.stop_reason) == ("stop", stop)


def _ascii() -> dict[int, float]:
    """A bias that leaves only tokens of printable ASCII, so that texts hold whole characters."""
    return {token: -100.0 for token in range(VOCAB) if not 0 <= token < 94}


def test_an_aborted_request_gives_its_blocks_back_at_once_and_the_others_run_on(make_engine: MakeEngine) -> None:
    engine = make_engine("llama")
    alone = run(make_engine("llama"), [prompt(33, 1)], whole_rows())[0]
    gone = engine.add({"prompt_token_ids": prompt(61)}, whole_rows())
    kept = engine.add({"prompt_token_ids": prompt(33, 1)}, whole_rows())
    for _ in range(4):
        engine.step()
    held = engine.manager.usage().held
    output = engine.abort(gone)
    assert output is not None
    assert output.outputs[0].finish_reason == "abort"
    assert len(output.outputs[0].token_ids) > 0
    assert engine.manager.usage().held < held
    assert engine.abort(gone) is None
    assert rows_of(finish(engine)[kept]).token_ids == rows_of(alone).token_ids


def test_a_request_past_its_timeout_ends_within_the_step_with_what_it_has(make_engine: MakeEngine, tiny_folder: Callable) -> None:
    now = [0.0]
    engine = _engine_with_clock(make_engine, lambda: now[0])
    late = engine.add({"prompt_token_ids": prompt(20)}, greedy(timeout=5.0))
    other = engine.add({"prompt_token_ids": prompt(20, 1)}, greedy())
    engine.step()
    engine.step()
    now[0] = 5.0
    outputs = {output.request_id: output for output in engine.step()}
    assert outputs[late].outputs[0].finish_reason == "timeout"
    assert len(outputs[late].outputs[0].token_ids) == 2
    assert finish(engine)[other].outputs[0].finish_reason == "length"


def _engine_with_clock(make_engine: MakeEngine, clock: Callable[[], float]) -> Engine:
    engine = make_engine("llama")
    return Engine(engine._runner._decoder, engine.tokenizer, engine._runner._ops, engine.config, clock=clock)


@pytest.mark.parametrize(
    ("bad", "params", "error"),
    [
        ({"prompt_token_ids": []}, greedy(), EmptyPrompt),
        ("", greedy(), EmptyPrompt),
        ({"prompt_token_ids": prompt(64)}, greedy(), PromptTooLong),
        ({"prompt_token_ids": [VOCAB]}, greedy(), InvalidParameter),
        ({"prompt_token_ids": [-1]}, greedy(), InvalidParameter),
        ({"prompt_token_ids": [True]}, greedy(), InvalidParameter),
        ({"prompt_token_ids": "abc"}, greedy(), InvalidParameter),
        ({"prompt": "a", "prompt_token_ids": [1]}, greedy(), InvalidParameter),
        ({"prompt": "a", "image": "b"}, greedy(), InvalidParameter),
        ({}, greedy(), InvalidParameter),
        (17, greedy(), InvalidParameter),
        ({"prompt_token_ids": [1]}, greedy(n=99), InvalidParameter),
        ({"prompt_token_ids": [1]}, greedy(logit_bias={VOCAB: 1.0}), InvalidParameter),
    ],
)
def test_a_bad_request_is_refused_with_a_hint_and_disturbs_no_other(
    make_engine: MakeEngine, bad: object, params: SamplingParams, error: type[Exception]
) -> None:
    engine = make_engine("llama", max_model_len=64)
    good = engine.add({"prompt_token_ids": prompt(20)}, greedy())
    engine.step()
    before = engine.manager.usage()
    with pytest.raises(error) as caught:
        engine.add(bad, params)
    assert caught.value.hint
    assert engine.manager.usage() == before
    assert tokens(finish(engine)[good]) == tokens(run(make_engine("llama"), [prompt(20)], greedy())[0])


def test_a_request_larger_than_the_pool_is_refused_with_both_numbers(make_engine: MakeEngine) -> None:
    engine = make_engine("llama", "block_size=4")
    engine = make_engine("llama", "block_size=4", kv_cache_memory=engine.spec.block_bytes() * 9)
    with pytest.raises(RequestTooLarge) as caught:
        engine.add({"prompt_token_ids": prompt(30)}, greedy(max_tokens=3))
    assert caught.value.numbers == {"num_tokens": 33, "pool_tokens": 32}
    output = run(engine, [prompt(30)], greedy(max_tokens=2))[0]
    assert output.outputs[0].finish_reason == "length"


def test_an_id_in_use_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine("llama")
    engine.add({"prompt_token_ids": [1]}, greedy(), request_id="a")
    with pytest.raises(DuplicateRequest):
        engine.add({"prompt_token_ids": [2]}, greedy(), request_id="a")
    assert finish(engine).keys() == {"a"}


def test_a_priority_that_would_be_ignored_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(InvalidParameter, match="policy"):
        make_engine("llama").add({"prompt_token_ids": [1]}, greedy(), priority=1)


def test_a_step_that_fails_changes_nothing_and_can_be_repeated(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("llama", "block_size=4")
    expected = tokens(run(engine, [prompt(20)], greedy())[0])
    engine.manager.reset_prefix_cache()
    request_id = engine.add({"prompt_token_ids": prompt(20)}, greedy())
    engine.step()
    decoder = engine._runner._decoder
    healthy = decoder.forward

    def broken(*args: object) -> object:
        healthy(*args)  # the entries are written, and then
        raise RuntimeError("the power went")

    monkeypatch.setattr(decoder, "forward", broken)
    with pytest.raises(RuntimeError, match="power"):
        engine.step()
    engine.manager.check()
    monkeypatch.undo()
    assert tokens(finish(engine)[request_id]) == expected


@pytest.mark.parametrize("asked", [{}, {"prompt_logprobs": 1}], ids=["sampled", "scored"])
@pytest.mark.parametrize("switches", [(), ("chunk=7",)], ids=["whole", "in pieces"])
def test_a_row_that_is_not_finite_ends_its_own_request_only(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, switches: tuple[str, ...], asked: dict[str, int]
) -> None:
    engine = make_engine("llama", *switches)
    expected = tokens(run(engine, [prompt(20)], greedy())[0])
    good = engine.add({"prompt_token_ids": prompt(20)}, greedy())
    bad = engine.add({"prompt_token_ids": prompt(20, 1)}, greedy(**asked))
    runner, healthy = engine._runner, engine._runner.run

    def poisoned(batch: object) -> np.ndarray:
        logits = healthy(batch).copy()
        for rows in batch.rows:
            if rows.scheduled.choice.request.request_id == bad:
                logits[rows.start] = np.nan
        return logits

    monkeypatch.setattr(runner, "run", poisoned)
    done = finish(engine)
    assert done[bad].outputs[0].finish_reason == "error"
    assert "not-finite" in str(done[bad].outputs[0].stop_reason)
    assert tokens(done[good]) == expected


def test_seeded_sampling_does_not_depend_on_company_order_or_chunks(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=7, max_tokens=10, ignore_eos=True)
    alone = tokens(run(make_engine("llama"), [prompt(20)], params)[0])
    others = [prompt(7, 3), prompt(33, 4)]
    company = run(make_engine("llama", "chunk=7"), [others[0], prompt(20), others[1]], params)
    assert tokens(company[1]) == alone
    different = run(make_engine("llama"), [prompt(20)], SamplingParams(temperature=0.8, top_p=0.9, seed=8, max_tokens=10, ignore_eos=True))
    assert tokens(different[0]) != alone


def test_choices_of_one_request_differ_and_are_the_same_with_and_without_sharing(make_engine: MakeEngine) -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=4, max_tokens=8, ignore_eos=True)
    shared = tokens(run(make_engine("llama"), [prompt(21)], params)[0])
    apart = tokens(run(make_engine("llama", "fork_sharing=off"), [prompt(21)], params)[0])
    assert shared == apart
    assert len(set(shared)) == 4


def test_prompt_logprobs_score_every_prompt_token_but_the_first_and_take_no_hits(make_engine: MakeEngine) -> None:
    engine = make_engine("llama", "block_size=4", "chunk=7")
    run(engine, [prompt(20)], greedy())
    output = run(engine, [prompt(20)], greedy(prompt_logprobs=0))[0]
    assert output.num_cached_tokens == 0
    scores = output.prompt_logprobs
    assert scores is not None
    assert scores[0] is None
    assert [set(score) for score in scores[1:]] == [{token} for token in prompt(20)[1:]]
    # Scoring position p is what greedy decoding reports when it is forced along the same tokens.
    for position in (5, 13, 19):
        row = run(engine, [prompt(position)], whole_rows(max_tokens=1))[0].outputs[0].logprobs[0]
        token = prompt(20)[position]
        assert scores[position][token].logprob == pytest.approx(row[token].logprob, abs=BOUND)
        assert scores[position][token].rank == row[token].rank


def test_prompt_logprobs_survive_preemption_without_gaps_or_repeats(make_engine: MakeEngine) -> None:
    engine = make_engine("llama", "block_size=4")
    engine = make_engine("llama", "block_size=4", kv_cache_memory=engine.spec.block_bytes() * 17)
    outputs = run(engine, [prompt(28), prompt(28, 1)], greedy(prompt_logprobs=0, max_tokens=12))
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    for salt, output in enumerate(outputs):
        assert [next(iter(score)) for score in output.prompt_logprobs[1:]] == prompt(28, salt)[1:]


def test_a_salt_keeps_prefixes_apart_and_an_equal_salt_shares_them(make_engine: MakeEngine) -> None:
    engine = make_engine("llama", "block_size=4")

    def cached(salt: str | None) -> int:
        request_id = engine.add({"prompt_token_ids": prompt(20)} | ({"cache_salt": salt} if salt else {}), greedy())
        return finish(engine)[request_id].num_cached_tokens

    assert [cached("a"), cached("a"), cached("b"), cached(None), cached(None)] == [0, 16, 0, 0, 16]


def test_the_pool_is_sized_by_memory_by_peak_concurrency_or_by_what_can_be_used(make_engine: MakeEngine) -> None:
    small = make_engine("llama", kv_cache_memory=1 << 20)
    assert small.spec.num_blocks == (1 << 20) // small.spec.block_bytes()
    peak = make_engine("llama", kv_cache_memory=None, peak_concurrency=10, typical_tokens=100)
    assert peak.spec.num_blocks == 1.5 * 10 * 7 + 1
    default = make_engine("llama", kv_cache_memory=None, max_num_seqs=2, max_model_len=64)
    assert default.spec.num_blocks == 2 * 4 + 1
    assert default.storage.nbytes == default.spec.num_blocks * default.spec.block_bytes()


@pytest.mark.parametrize("switch", ["kv_cache_dtype=bfloat16", "kv_cache_dtype=float16", "dtype=bfloat16"])
def test_narrow_entries_and_weights_run_and_are_near(make_engine: MakeEngine, switch: str) -> None:
    exact = rows_of(run(make_engine("llama"), [prompt(20)], whole_rows(max_tokens=1))[0])
    narrow = rows_of(run(make_engine("llama", switch), [prompt(20)], whole_rows(max_tokens=1))[0])
    difference = np.linalg.norm(exact.rows - narrow.rows) / np.linalg.norm(exact.rows)
    assert 0 < difference < 0.1


def test_the_reference_operators_run_the_same_engine(make_engine: MakeEngine) -> None:
    exact = rows_of(run(make_engine("llama"), [prompt(9)], whole_rows(max_tokens=3))[0])
    oracle = rows_of(run(make_engine("llama", "ops=reference"), [prompt(9)], whole_rows(max_tokens=3))[0])
    assert exact.token_ids == oracle.token_ids
    assert np.linalg.norm(exact.rows - oracle.rows) / np.linalg.norm(oracle.rows) < BOUND


def test_a_trace_tells_positions_blocks_and_the_storage_of_each_step(make_engine: MakeEngine) -> None:
    traces = []
    engine = make_engine("mistral", "block_size=4")
    engine = Engine(engine._runner._decoder, engine.tokenizer, engine._runner._ops, engine.config, trace=traces.append)
    run(engine, [prompt(6)], greedy(max_tokens=3))
    assert [(t.step, t.group, t.start, t.stop, t.seq_len, t.block_ids) for t in traces] == [
        (0, "window", 0, 6, 6, (1, 2)),
        (1, "window", 6, 7, 7, (1, 2)),
        (2, "window", 7, 8, 8, (1, 2)),
    ]
    keys = engine.storage.layer(0).keys
    assert {(t.shape, t.data_ptr) for t in traces} == {(tuple(keys.shape), keys.data_ptr())}


def test_the_end_of_text_token_stops_unless_it_is_ignored(make_engine: MakeEngine) -> None:
    engine = make_engine("llama")
    bias = {EOS: 100.0}
    stopped = run(engine, [prompt(5)], SamplingParams(temperature=0, max_tokens=4, logit_bias=bias))[0].outputs[0]
    ignored = run(engine, [prompt(5)], SamplingParams(temperature=0, max_tokens=4, logit_bias=bias, ignore_eos=True))[0].outputs[0]
    assert (stopped.token_ids, stopped.finish_reason, stopped.text) == ((EOS,), "stop", "")
    assert (ignored.token_ids, ignored.finish_reason) == ((EOS,) * 4, "length")


@pytest.mark.parametrize("index", [0, 1])
def test_what_the_engine_holds_is_what_it_says(make_engine: MakeEngine, index: int) -> None:
    engine = make_engine("llama", ("allocator=paged", "allocator=contiguous")[index], "block_size=4")
    run(engine, [prompt(20), prompt(33)], greedy())
    stats = engine.stats()
    assert stats.num_steps == 6
    assert stats.peak_blocks >= 7 + 10
    assert stats.peak_cache_bytes == stats.peak_blocks * engine.spec.block_bytes()
    assert 0 <= stats.internal_waste < 0.5
    assert stats.pool_blocks == engine.spec.num_blocks - 1
