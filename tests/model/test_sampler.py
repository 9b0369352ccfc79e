"""A token is a pure function of its row, its parameters and its position."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kvpact.errors import InvalidParameter, NotFinite
from kvpact.model.draw import draw
from kvpact.model.fixed import exponential, tree_sum
from kvpact.model.logprobs import log_sum_exp, token_logprobs
from kvpact.model.philox import uniform
from kvpact.model.sampler import SamplingRow, sample
from kvpact.params import SamplingParams

VOCAB = 49_152


def row(*, seed=0, choice=0, position=0, prompt=(), output=(), stop_ids=(), **params):
    return SamplingRow(
        params=SamplingParams(**params),
        seed=seed,
        choice=choice,
        output_position=position,
        prompt_token_ids=prompt,
        output_token_ids=output,
        stop_ids=frozenset(stop_ids),
    )


def naive(logits, r):
    """The same rules on a fully sorted row, one candidate at a time."""
    p = r.params
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(logits.max())) / p.temperature
    weights = exponential(scaled)
    cut = 0 < p.top_k < logits.size or p.top_p < 1 or p.min_p > 0
    if 0 < p.top_k < logits.size:
        order = order[: p.top_k]
        total = np.cumsum(weights[order])[-1]
    else:
        total = tree_sum(weights)
    if p.top_p < 1:
        kept, mass = [], 0.0
        for token in order:
            kept.append(token)
            mass += weights[token]
            if mass >= p.top_p * total:
                break
        order = kept
    if p.min_p > 0:
        order = [token for token in order if scaled[token] >= math.log(p.min_p)]
    mass = np.cumsum(weights[order])[-1] if cut else total
    target, running = uniform(r.seed, r.choice, r.output_position) * mass, 0.0
    for token in order:
        running += weights[token]
        if running > target:
            return token
    return [token for token in order if weights[token] > 0][-1]


def spread(seed, vocab=VOCAB):
    """A row shaped like a model's: a wide bulk and forty tokens that stand out."""
    logits = (np.random.default_rng(seed).standard_normal(vocab) * 2).astype(np.float32)
    logits[:: vocab // 40][:40] += np.linspace(12, 4, 40, dtype=np.float32)
    return logits


ROWS = st.one_of(
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 1.0, 3.0])),
    hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-20, 20, width=32)),
    st.builds(lambda n, v: np.full(n, v, np.float32), st.integers(1, 2_000), st.floats(-5, 5, width=32)),
).filter(lambda logits: np.isfinite(logits.max()))
SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([5e-324, 1e-300, 0.01, 0.7, 1.0, 1e6]),
        "top_k": st.sampled_from([0, -1, 1, 2, 40, 10_000]),
        "top_p": st.sampled_from([1e-9, 0.3, 0.5, 0.95, 0.999999, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-9, 0.1, 0.5, 1.0]),
        "seed": st.integers(0, 2**64 - 1),
        "position": st.integers(0, 10_000),
    }
)


@settings(max_examples=400)
@given(ROWS, SETTINGS)
def test_a_draw_equals_that_of_a_full_sort(logits, options):
    r = row(**options)
    assert sample(logits, r).token_id == naive(logits, r)
    assert draw(logits, r.params, uniform(r.seed, r.choice, r.output_position)) == naive(logits, r)


@pytest.mark.parametrize(
    "options", [{}, {"top_p": 0.95}, {"top_p": 0.9999}, {"top_k": 300, "top_p": 0.9, "min_p": 0.01}, {"temperature": 40.0}]
)
def test_a_draw_equals_that_of_a_full_sort_at_full_size(options):
    logits = spread(1)
    for position in range(4):
        r = row(seed=5, position=position, **options)
        assert sample(logits, r).token_id == naive(logits, r)


@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
def test_the_ends_of_the_unit_interval_draw_a_token_that_can_follow(monkeypatch, u):
    """Draws too rare to wait for: 1 - 2**-53 may lie beyond the running sum, 0.5 right on a candidate's edge."""
    monkeypatch.setattr("kvpact.model.sampler.uniform", lambda *name: u)
    for size in (1, 2, 3, 1_000, 5_001):
        for tail in (0, 7):
            logits = np.concatenate([spread(size, max(size, 40))[:size], np.full(tail, -np.inf, np.float32)])
            order = np.lexsort((np.arange(logits.size), -logits))
            expected = {0.0: order[0], 1 - 2.0**-53: order[size - 1]}
            drawn = sample(logits, row()).token_id
            assert drawn == expected.get(u, drawn)
            assert drawn < size
    assert sample(np.zeros(2, np.float32), row()).token_id == (0 if u < 0.5 else 1)


@given(ROWS)
def test_greedy_takes_the_lowest_id_of_the_highest_logit(logits):
    assert sample(logits, row(temperature=0)).token_id == logits.tolist().index(logits.max())


def frequencies(logits, draws, **options):
    return np.bincount([sample(logits, row(seed=11, position=i, **options)).token_id for i in range(draws)], minlength=logits.size)


def chi_square(counts, weights):
    expected = weights / weights.sum() * counts.sum()
    live = expected > 0
    assert counts[~live].sum() == 0
    return ((counts[live] - expected[live]) ** 2 / expected[live]).sum()


def test_twenty_thousand_draws_follow_the_distribution():
    logits = np.linspace(2, -1, 20).astype(np.float32)
    logits[[3, 9]] = logits[5]
    weights = np.exp(logits.astype(np.float64) / 0.8)
    counts = frequencies(logits, 20_000, temperature=0.8)
    assert chi_square(counts, weights) < 43.8  # 19 degrees of freedom, 0.1 %
    assert chi_square(counts, np.exp(logits.astype(np.float64) / 0.9)) > 43.8  # the test tells another temperature apart


def test_draws_after_every_cut_follow_what_is_left():
    logits = np.log(np.array([0.3, 0.05, 0.25, 0.2, 0.15, 0.05], dtype=np.float32))
    assert chi_square(frequencies(logits, 3_000, top_k=3), np.array([0.3, 0, 0.25, 0.2, 0, 0])) < 13.8
    assert chi_square(frequencies(logits, 3_000, top_p=0.7), np.array([0.3, 0, 0.25, 0.2, 0, 0])) < 13.8
    assert chi_square(frequencies(logits, 3_000, min_p=0.6), np.array([0.3, 0, 0.25, 0.2, 0, 0])) < 13.8
    assert chi_square(frequencies(logits, 3_000, top_k=4, top_p=0.6), np.array([0.3, 0, 0.25, 0, 0, 0])) < 10.9


def test_top_k_keeps_exactly_k_of_a_tie_by_lowest_id():
    assert set(np.flatnonzero(frequencies(np.zeros(10, np.float32), 300, top_k=3))) == {0, 1, 2}


def test_top_p_always_keeps_one_and_never_one_too_many():
    half = np.log(np.array([0.5, 0.25, 0.25], dtype=np.float32))
    assert set(np.flatnonzero(frequencies(half, 200, top_p=0.1))) == {0}
    assert set(np.flatnonzero(frequencies(np.zeros(4, np.float32), 200, top_p=0.5))) == {0, 1}


def test_a_token_does_not_depend_on_what_was_drawn_before():
    logits = spread(2)
    alone = sample(logits, row(seed=3, position=17, top_p=0.95))
    for position in range(17):
        sample(spread(position), row(seed=3, position=position))
    assert sample(logits, row(seed=3, position=17, top_p=0.95)) == alone


def test_choice_and_position_draw_for_themselves():
    logits = np.zeros(1_000, np.float32)
    by_choice = {sample(logits, row(seed=1, choice=c)).token_id for c in range(50)}
    by_position = {sample(logits, row(seed=1, position=p)).token_id for p in range(50)}
    assert len(by_choice) > 40
    assert len(by_position) > 40


def test_a_row_is_left_as_it_is():
    logits = spread(3)
    before = logits.copy()
    busy = {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "logit_bias": {5: 2.0}, "min_tokens": 3, "logprobs": 2}
    sample(logits, row(prompt=[1, 2], output=[2, 3], stop_ids=[4], **busy))
    assert np.array_equal(logits, before)


# Log-probabilities


def test_log_probabilities_come_from_the_raw_row():
    logits = np.log(np.array([0.5, 0.3, 0.2], dtype=np.float32))
    sampled = sample(logits, row(temperature=0, logit_bias={2: 50.0}, logprobs=2))
    assert sampled.token_id == 2
    assert sampled.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert sampled.rank == 3
    assert [(t.token_id, t.rank) for t in sampled.top] == [(0, 1), (1, 2)]
    assert [t.logprob for t in sampled.top] == pytest.approx([math.log(0.5), math.log(0.3)], abs=1e-6)


def test_no_log_probabilities_unless_asked_for():
    sampled = sample(np.zeros(3, np.float32), row(temperature=0))
    assert (sampled.logprob, sampled.rank, sampled.top) == (None, None, ())
    assert sample(np.zeros(3, np.float32), row(temperature=0, logprobs=0)).logprob == pytest.approx(-math.log(3))


@given(hnp.arrays(np.float32, st.integers(1, 200), elements=st.floats(-80, 80, width=32)), st.integers(0, 10))
def test_log_probabilities_are_those_of_exact_sums(logits, num_top):
    exact = math.log(math.fsum(math.exp(float(v) - float(logits.max())) for v in logits)) + float(logits.max())
    assert log_sum_exp(logits) == pytest.approx(exact, abs=1e-12)
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    logprob, rank, top = token_logprobs(logits, order[-1], num_top)
    assert logprob == pytest.approx(float(logits[order[-1]]) - exact, abs=1e-12)
    assert rank == logits.size
    assert [t.token_id for t in top] == order[:num_top]
    assert [t.rank for t in top] == list(range(1, len(top) + 1))


def test_a_token_that_cannot_follow_has_the_logarithm_of_nothing():
    logits = np.array([0.0, -np.inf], np.float32)
    assert token_logprobs(logits, 1, 2)[0] == -math.inf
    assert sample(logits, row(position=9)).token_id == 0


# Numbers that aren't finite


@pytest.mark.parametrize(("bad", "options"), [(np.nan, {"temperature": 0}), (np.inf, {"temperature": 0}), (np.nan, {"top_k": 5})])
def test_a_row_that_is_not_finite_gives_an_error_and_no_token(bad, options):
    logits = np.zeros(100, np.float32)
    logits[[17, 40]] = bad
    with pytest.raises(NotFinite, match="2 of 100 logits") as caught:
        sample(logits, row(**options))
    assert caught.value.numbers == {"count": 2, "first_id": 17, "vocab_size": 100}


def test_a_row_without_a_candidate_gives_an_error_and_no_token():
    with pytest.raises(NotFinite, match="8 of 8 logits after the model are -inf"):
        sample(np.full(8, -np.inf, np.float32), row())
    with pytest.raises(NotFinite, match="after penalties, bias and min_tokens"):
        sample(np.zeros(2, np.float32), row(temperature=0, min_tokens=1, stop_ids=[0, 1]))
    for options in ({"repetition_penalty": 0.1}, {"repetition_penalty": 1e-50}, {"logit_bias": {1: 1e39}}):
        with pytest.raises(NotFinite, match="1 of 2 logits after penalties, bias and min_tokens are inf, the first at token id 1"):
            sample(np.full(2, 3e38, np.float32), row(temperature=0, prompt=[1], **options))


def test_a_bias_beyond_the_vocabulary_is_refused_with_its_number():
    with pytest.raises(InvalidParameter, match="token id 10, the vocabulary has 10") as caught:
        sample(np.zeros(10, np.float32), row(logit_bias={3: 1.0, 10: 1.0}))
    assert caught.value.numbers == {"token_id": 10, "vocab_size": 10}
