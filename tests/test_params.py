"""A request's parameters: wrong ones are refused by name, with the value and the rule."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpact.errors import InvalidParameter
from kvpact.params import SamplingParams

INF, NAN = float("inf"), float("nan")


def test_defaults_are_those_of_the_offline_api_that_code_moves_over_from():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_k, params.top_p, params.min_p) == (1, 1.0, 0, 1.0, 0.0)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.logprobs, params.prompt_logprobs) == (16, 0, None, None)
    assert (params.skip_special_tokens, params.include_stop_str_in_output, params.ignore_eos) == (True, False, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0),
        ("n", 1.5),
        ("n", True),
        ("temperature", -0.1),
        ("temperature", INF),
        ("temperature", NAN),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", -2),
        ("top_k", 1.0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", NAN),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 0.5),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", INF),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", NAN),
        ("stop", ("a", "")),
        ("stop", (3,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", ("2",)),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"5": 1.0}),
        ("logit_bias", {5: "much"}),
        ("logit_bias", {5: NAN}),
        ("logit_bias", {5: INF}),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", -1),
        ("logprobs", True),
        ("prompt_logprobs", -1),
        ("timeout", 0.0),
        ("timeout", NAN),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value):
    with pytest.raises(InvalidParameter, match=rf"^{name} is ") as caught:
        SamplingParams(**{name: value})
    assert name in caught.value.hint
    assert caught.value.numbers["field"] == name
    assert caught.value.code == "invalid-parameter"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 2.5),
        ("top_k", -1),
        ("top_p", 1),
        ("top_p", 1e-9),
        ("min_p", 1.0),
        ("seed", 0),
        ("seed", 2**64 - 1),
        ("presence_penalty", -2),
        ("min_tokens", 16),
        ("logprobs", 0),
        ("max_tokens", 1),
        ("logit_bias", {0: -INF, 5: 3}),
        ("timeout", 0.001),
    ],
)
def test_the_edges_of_each_range_are_allowed(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_numbers_of_numpy_are_numbers():
    assert SamplingParams(top_k=np.int64(5), temperature=np.float32(0.5), stop_token_ids=[np.int32(2)]).top_k == 5


def test_without_max_tokens_any_min_tokens_is_allowed():
    assert SamplingParams(max_tokens=None, min_tokens=10_000).min_tokens == 10_000


def test_one_stop_string_a_list_and_none_mean_what_they_say():
    assert SamplingParams(stop="end").stop == ("end",)
    assert SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2]) == SamplingParams(stop=("a", "b"), stop_token_ids=(1, 2))
    assert SamplingParams(stop=None, stop_token_ids=None, logit_bias=None) == SamplingParams()


def test_parameters_never_change_after_they_are_made():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 9.0
    assert params.logit_bias == {1: 2.0}
    with pytest.raises(TypeError):
        params.logit_bias[1] = 3.0
    with pytest.raises(FrozenInstanceError):
        params.top_k = 3
    assert replace(params, top_k=3).logit_bias == {1: 2.0}


def test_greedy_is_temperature_zero_and_nothing_else():
    assert SamplingParams(temperature=0).greedy
    assert not SamplingParams(temperature=1e-9).greedy


def test_an_unknown_field_is_refused_with_those_that_exist():
    with pytest.raises(InvalidParameter, match="unknown sampling field beam_width, best_of") as caught:
        SamplingParams.from_options({"best_of": 2, "top_k": 3, "beam_width": 1})
    assert "temperature" in caught.value.hint


@given(st.fixed_dictionaries({}, optional={"top_k": st.integers(-1, 100), "top_p": st.floats(0.1, 1), "seed": st.integers(0, 2**64 - 1)}))
def test_options_make_what_keywords_make(options):
    assert SamplingParams.from_options(options) == SamplingParams(**options)
