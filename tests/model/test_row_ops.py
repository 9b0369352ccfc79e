"""Each way to read a row and to draw from it, NumPy and every build of the compiled core, gives the same bits."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from builds import forced_build, needs_native, runnable_builds
from kvpact.model import draw as numpy_draw
from kvpact.model import philox, row_ops
from kvpact.model.draw import log_min_p
from kvpact.model.fixed import Ordering, exponential, tree_sum
from kvpact.model.row_ops import RowFacts
from kvpact.params import SamplingParams

#: Few distinct values, so that ties, both zeros and -inf are common.
TIED = hnp.arrays(np.float32, st.integers(1, 300), elements=st.sampled_from([-np.inf, -3.5, -0.0, 0.0, 1.0, 1.0000001, 7.25]))
FREE = hnp.arrays(np.float32, st.integers(1, 300), elements=st.floats(-(2.0**100), 2.0**100, width=32))
LIKE_A_MODEL = st.builds(
    lambda size, seed, scale: (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32),
    st.integers(1, 3000),
    st.integers(0, 2**32),
    st.sampled_from([1e-6, 0.5, 3.0, 40.0]),
)
ROWS = st.one_of(TIED, FREE, LIKE_A_MODEL)
BUILDS = runnable_builds()


def with_a_candidate(logits):
    if np.isneginf(logits).all():
        logits[logits.size // 2] = 0
    return logits


# What a row holds


def check_reading(logits, token):
    """The compiled core's facts of a row, and those of NumPy."""
    largest = float(logits.max())
    assert row_ops.exp_sum(logits, largest) == tree_sum(exponential(logits.astype(np.float64) - largest))
    assert row_ops.row_facts(logits) == RowFacts(largest, int(logits.argmax()), 0, -1)
    ordering = Ordering(logits)
    assert row_ops.rank(logits, token) == ordering.rank(token)
    for count in (0, 1, 20, logits.size // 2, logits.size, logits.size + 5):
        assert row_ops.first(logits, count).tolist() == ordering.first(count).tolist()


@needs_native
@given(ROWS.map(with_a_candidate), st.data())
def test_each_build_reads_a_row_to_the_same_bits(logits, data):
    token = data.draw(st.integers(0, logits.size - 1))
    for build in BUILDS:
        with forced_build(build):
            check_reading(logits, token)


@needs_native
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("vocab", [1, 2, 1000, 49_152, 50_257])
def test_each_build_reads_whole_vocabularies_to_the_same_bits(build, vocab):
    rng = np.random.default_rng(vocab)
    with forced_build(build):
        for scale in (0, 0.01, 3, 300):  # constant rows, flat ones, usual ones, ones where nearly all underflows
            logits = (rng.standard_normal(vocab) * scale).astype(np.float32)
            logits[1::7] = -np.inf
            check_reading(logits, vocab // 2)


@needs_native
@given(ROWS, st.lists(st.tuples(st.integers(0, 2999), st.sampled_from([np.nan, np.inf, -np.inf])), max_size=4))
def test_each_build_finds_what_is_not_finite_where_numpy_does(logits, bad):
    for place, value in bad:
        logits[place % logits.size] = value
    found = [row_ops.row_facts(logits)]
    for build in BUILDS:
        with forced_build(build):
            found.append(row_ops.row_facts(logits))
    frozen = logits.copy()
    frozen.flags.writeable = False
    expected = row_ops.row_facts(frozen)
    for facts in found:
        assert facts[2:] == expected[2:]
        if math.isnan(expected.largest):
            assert math.isnan(facts.largest)
        else:
            assert facts[:2] == expected[:2]


def test_a_row_that_the_core_does_not_take_has_the_same_bits():
    logits = np.random.default_rng(1).standard_normal(2000).astype(np.float32)
    frozen = logits.copy()
    frozen.flags.writeable = False
    strided = np.repeat(logits, 2)[::2]
    rows, params = (logits, frozen, strided), SamplingParams(top_p=0.9)
    assert len({row_ops.exp_sum(row, float(logits.max())) for row in rows}) == 1
    assert len({row_ops.rank(row, 77) for row in rows}) == 1
    assert len({row_ops.row_facts(row) for row in rows}) == 1
    assert len({tuple(row_ops.first(row, 30)) for row in rows}) == 1
    assert len({row_ops.draw(row, params, 0.7) for row in rows}) == 1


# The draw


@dataclass(frozen=True)
class Case:
    logits: np.ndarray
    params: SamplingParams
    u: float


def scaled(logits, temperature):
    with np.errstate(over="ignore"):
        return (logits.astype(np.float64) - float(logits.max())) / temperature


def edge(logits, temperature, place, steps, count):
    """The share of the first `count` candidates' mass at a candidate's edge, some last places beside it: one bit decides."""
    weights = exponential(scaled(logits, temperature))
    running = np.cumsum(weights[Ordering(logits).first(logits.size)])
    mass = tree_sum(weights) if count == logits.size else running[count - 1]
    share = running[place % count] / mass
    for _ in range(abs(steps)):
        share = np.nextafter(share, 2.0 if steps > 0 else 0.0)
    return float(share)


@st.composite
def cases(draw):
    logits = with_a_candidate(draw(ROWS))
    temperature = draw(st.sampled_from([5e-324, 1e-300, 0.01, 0.7, 1.0, 1.3, 1e6, 1e300]))
    top_k = draw(st.sampled_from([0, -1, 1, 2, 40, logits.size - 1, logits.size, 10_000, 10**30]))
    count = top_k if 0 < top_k < logits.size else logits.size
    edges = st.builds(edge, st.just(logits), st.just(temperature), st.integers(0, 2999), st.integers(-2, 2), st.just(count))
    top_p = draw(st.one_of(st.just(1.0), st.sampled_from([1e-300, 1e-9, 0.3, 0.9, 0.999999]), edges))
    likely = math.exp(scaled(logits, temperature)[draw(st.integers(0, logits.size - 1))])
    u = draw(st.one_of(st.sampled_from([0.0, 0.5, 1 - 2.0**-53]), st.floats(0, 1, exclude_max=True), edges))
    return Case(
        logits,
        SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=min(max(top_p, 5e-324), 1.0),
            min_p=draw(st.sampled_from([0.0, 0.0, 5e-324, 1e-9, 0.1, 0.5, 1.0, likely])),
        ),
        min(u, 1 - 2.0**-53),
    )


def check_draw(case, draw):
    assert draw(case.logits, case.params, case.u) == numpy_draw.draw(case.logits, case.params, case.u)


@needs_native
@settings(max_examples=1000)
@given(cases())
def test_each_build_draws_the_same_token(case):
    for build in BUILDS:
        with forced_build(build):
            check_draw(case, row_ops.draw)


@needs_native
@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
def test_each_build_draws_the_same_token_at_full_size(build, scale):
    """Also where candidates are looked at in several rounds: up to every last one."""
    rng = np.random.default_rng(3)
    logits = (rng.standard_normal(49_152) * scale).astype(np.float16).astype(np.float32)  # float16: hundreds of ties
    with forced_build(build):
        for options in ({}, {"top_p": 0.9}, {"top_k": 3000, "temperature": 0.8}, {"min_p": 1e-4}, {"top_p": 1 - 2.0**-53}):
            for u in (0.0, 1 - 2.0**-53, *rng.random(4)):
                check_draw(Case(logits, SamplingParams(**options), u), row_ops.draw)


def shuffled_ties(logits, params, u):
    """Fault: the higher id of a tie comes first."""
    return logits.size - 1 - numpy_draw.draw(logits[::-1], params, u)


def with_params(**change):
    """Fault: the rule with other parameters."""
    return lambda logits, params, u: numpy_draw.draw(
        logits, replace(params, **{name: after(getattr(params, name)) for name, after in change.items()}), u
    )


FAULTS = {
    "the higher id of a tie first": (shuffled_ties, {}),
    "a temperature off by its last place": (with_params(temperature=lambda t: float(np.nextafter(t, 1e301))), {}),
    "a top-p off by its last place": (with_params(top_p=lambda p: float(np.nextafter(p, 0)) if 5e-324 < p < 1 else p), {}),
    "a mass summed in another order": (numpy_draw.draw, {"tree_sum": lambda weights: float(np.cumsum(weights)[-1])}),
    "an exponential off by its last place": (numpy_draw.draw, {"exponential": lambda x: np.nextafter(exponential(x), 0)}),
    "a min-p that keeps too few": (numpy_draw.draw, {"log_min_p": lambda params: min(0.0, log_min_p(params) + 1e-12)}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_draw_that_is_off_by_a_bit_is_found(name):
    """Inverse: the same cases tell each fault from the rule."""
    faulty, replaced = FAULTS[name]

    @settings(max_examples=3000, derandomize=True, database=None, phases=[Phase.generate])
    @given(cases())
    def check(case):
        expected = numpy_draw.draw(case.logits, case.params, case.u)
        with pytest.MonkeyPatch.context() as patch:
            for part, other in replaced.items():
                patch.setattr(numpy_draw, part, other)
            with np.errstate(all="ignore"):
                drawn = faulty(case.logits, case.params, case.u)
        assert drawn == expected

    with pytest.raises(AssertionError):
        check()


@needs_native
@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"temperature": 0.0}, "temperature is 0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"u": 1.0}, "u is 1"),
        ({"log_min_p": 0.5}, "log_min_p is 0.5"),
        ({"logits": np.zeros(0, np.float32)}, "logits are empty"),
        ({"logits": np.zeros(3)}, "float64, expected float32"),
        ({"logits": np.array([0, np.nan], np.float32)}, "no token can be drawn"),
        ({"logits": np.array([0, np.inf], np.float32)}, "no token can be drawn"),
        ({"logits": np.full(40, -np.inf, np.float32)}, "no token can be drawn"),
    ],
)
def test_what_no_token_can_be_drawn_from_is_refused(changed, what):
    usual = {"logits": np.zeros(40, np.float32), "temperature": 1.0, "top_k": 0, "top_p": 1.0, "log_min_p": -math.inf, "u": 0.5}
    assert row_ops.compiled().draw(**usual) == 20
    with pytest.raises(ValueError, match=what):
        row_ops.compiled().draw(**(usual | changed))


@needs_native
def test_after_the_first_row_no_draw_allocates_until_a_longer_one_comes():
    core, params = row_ops.compiled(), SamplingParams(top_p=0.9)

    def draw(vocab):
        row = np.linspace(0, 3, vocab, dtype=np.float32)
        row_ops.draw(row, params, 0.5)
        row_ops.exp_sum(row, 3.0)
        row_ops.first(row, 20)
        return core.num_sample_allocations()

    first = draw(60_000)
    assert [draw(60_000), draw(1000), draw(60_000)] == [first] * 3
    assert draw(90_000) > first


@needs_native
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**40))
def test_the_core_has_the_same_uniform_numbers(seed, choice, position):
    assert row_ops.uniform(seed, choice, position) == philox.uniform(seed, choice, position)
