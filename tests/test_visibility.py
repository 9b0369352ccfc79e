"""The one rule, against truth tables written out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvpact.errors import InvalidConfig
from kvpact.visibility import Part, Visibility

#: Rows are queries 0 to 5, columns keys 0 to 5; `x` is visible.
TABLES = {
    "causal": (
        Visibility(),
        """
        x.....
        xx....
        xxx...
        xxxx..
        xxxxx.
        xxxxxx
        """,
    ),
    "everything": (
        Visibility(causal=False),
        """
        xxxxxx
        xxxxxx
        xxxxxx
        xxxxxx
        xxxxxx
        xxxxxx
        """,
    ),
    "window of 1": (
        Visibility(window=1),
        """
        x.....
        .x....
        ..x...
        ...x..
        ....x.
        .....x
        """,
    ),
    "window of 3": (
        Visibility(window=3),
        """
        x.....
        xx....
        xxx...
        .xxx..
        ..xxx.
        ...xxx
        """,
    ),
    "window of 2 without causality": (
        Visibility(causal=False, window=2),
        """
        xxxxxx
        xxxxxx
        .xxxxx
        ..xxxx
        ...xxx
        ....xx
        """,
    ),
    "window of 2 with one sink": (
        Visibility(window=2, sinks=1),
        """
        x.....
        xx....
        xxx...
        x.xx..
        x..xx.
        x...xx
        """,
    ),
    "prefix of 3": (
        Visibility(prefix=3),
        """
        xxx...
        xxx...
        xxx...
        xxxx..
        xxxxx.
        xxxxxx
        """,
    ),
    "window of 2 with a prefix of 2": (
        Visibility(window=2, prefix=2),
        """
        xx....
        xx....
        xxx...
        xxxx..
        xx.xx.
        xx..xx
        """,
    ),
    "sinks without a window change nothing": (
        Visibility(sinks=2),
        """
        x.....
        xx....
        xxx...
        xxxx..
        xxxxx.
        xxxxxx
        """,
    ),
}

rules = st.builds(
    Visibility,
    causal=st.booleans(),
    window=st.none() | st.integers(1, 9),
    sinks=st.integers(0, 4),
    prefix=st.integers(0, 6),
)


def table(text: str) -> list[list[bool]]:
    return [[mark == "x" for mark in line] for line in text.split()]


@pytest.mark.parametrize("name", TABLES)
def test_a_rule_sees_exactly_what_its_table_says(name: str) -> None:
    rule, text = TABLES[name]
    expected = table(text)
    assert [[bool(rule.visible(q, k)) for k in range(6)] for q in range(6)] == expected
    positions = np.arange(6)
    assert rule.visible(positions[:, None], positions[None, :]).tolist() == expected
    tensor = torch.arange(6)
    assert rule.visible(tensor[:, None], tensor[None, :]).tolist() == expected


def test_the_tables_tell_rules_apart() -> None:
    assert table(TABLES["causal"][1]) != table(TABLES["window of 3"][1]) != table(TABLES["window of 2 with one sink"][1])


def test_a_negative_key_is_never_visible() -> None:
    assert not any(rule.visible(5, -1) for rule, _ in TABLES.values())


@given(rules, st.integers(0, 30))
def test_first_visible_is_exact(rule: Visibility, q: int) -> None:
    lowest = next(k for k in range(q + 1) if rule.visible(q, k))
    assert rule.first_visible(q) == lowest


@given(rules, st.integers(0, 30))
def test_a_query_sees_itself(rule: Visibility, q: int) -> None:
    assert rule.visible(q, q)


@given(rules, rules, st.integers(0, 20), st.integers(0, 20))
def test_and_is_visible_under_both(left: Visibility, right: Visibility, q: int, k: int) -> None:
    if (left.sinks, left.prefix) != (right.sinks, right.prefix):
        with pytest.raises(InvalidConfig):
            left & right
    else:
        assert (left & right).visible(q, k) == (left.visible(q, k) and right.visible(q, k))


@given(rules, st.integers(0, 4), st.integers(0, 6))
def test_and_with_equal_sinks_and_prefix_is_conjunction(left: Visibility, sinks: int, prefix: int) -> None:
    left = Visibility(causal=left.causal, window=left.window, sinks=sinks, prefix=prefix)
    for right in (Visibility(sinks=sinks, prefix=prefix), Visibility(causal=False, window=4, sinks=sinks, prefix=prefix)):
        both = left & right
        for q in range(12):
            assert [both.visible(q, k) for k in range(12)] == [left.visible(q, k) and right.visible(q, k) for k in range(12)]


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        (Visibility(causal=False), set()),
        (Visibility(), {Part.CAUSAL}),
        (Visibility(sinks=4), {Part.CAUSAL}),
        (Visibility(window=4), {Part.CAUSAL, Part.WINDOW}),
        (Visibility(window=4, sinks=1), {Part.CAUSAL, Part.WINDOW, Part.SINKS}),
        (Visibility(prefix=4), {Part.CAUSAL, Part.PREFIX}),
    ],
)
def test_parts_names_what_is_in_force(rule: Visibility, parts: set[Part]) -> None:
    assert rule.parts() == parts


@pytest.mark.parametrize("wrong", [{"window": 0}, {"window": -1}, {"sinks": -1}, {"prefix": -1}])
def test_a_rule_that_can_t_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Visibility(**wrong)
    assert str(next(iter(wrong.values()))) in caught.value.message
