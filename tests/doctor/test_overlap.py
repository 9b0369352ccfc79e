"""Bytes that two strided regions share, against a plain listing of every byte."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpact.doctor import overlap as module
from kvpact.doctor.overlap import Region, overlap, runs, shares_itself, span


def listed(region: Region) -> list[int]:
    """Every byte, one element after the other."""
    found = []
    for index in product(*(range(size) for size in region.shape)):
        start = region.pointer + sum(place * stride for place, stride in zip(index, region.strides, strict=True)) * region.itemsize
        found += range(start, start + region.itemsize)
    return found


@st.composite
def regions(draw: st.DrawFn) -> Region:
    rank = draw(st.integers(0, 3))
    return Region(
        pointer=draw(st.integers(100, 140)),
        shape=tuple(draw(st.lists(st.integers(0, 4), min_size=rank, max_size=rank))),
        strides=tuple(draw(st.lists(st.integers(-7, 12), min_size=rank, max_size=rank))),
        itemsize=draw(st.sampled_from([1, 2, 4])),
    )


@given(regions(), regions())
def test_shared_bytes_are_those_of_a_plain_listing(one: Region, other: Region) -> None:
    common = set(listed(one)) & set(listed(other))
    found = overlap(one, other)
    if not common:
        assert found is None
    else:
        assert found is not None
        assert (found.first, found.size, found.exact) == (min(common), len(common), True)


@given(regions())
def test_span_and_runs_are_those_of_a_plain_listing(region: Region) -> None:
    covered = listed(region)
    table = runs(region)
    assert table is not None
    assert sorted(set(covered)) == [byte for start, stop in table for byte in range(start, stop)]
    if covered:
        assert span(region) == (min(covered), max(covered) + 1)


def test_heads_interleaved_in_one_buffer_share_nothing() -> None:
    heads = [Region(pointer=head * 8 * 4, shape=(5, 8), strides=(16, 1), itemsize=4) for head in range(2)]
    assert span(heads[0])[1] > span(heads[1])[0]
    assert overlap(*heads) is None


@pytest.mark.parametrize(
    ("shape", "strides", "shared"),
    [((3, 4), (0, 1), 8), ((5, 3), (1, 1), 8), ((3, 4), (4, 1), 0), ((3, 4), (1, 3), 0), ((), (), 0), ((0, 4), (0, 1), 0)],
)
def test_elements_that_lie_on_others_are_counted(shape: tuple[int, ...], strides: tuple[int, ...], shared: int) -> None:
    assert shares_itself(Region(pointer=0, shape=shape, strides=strides, itemsize=4)) == shared


def test_what_is_too_large_to_list_is_judged_by_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_RUNS", 1)
    one = Region(pointer=0, shape=(5, 8), strides=(16, 1), itemsize=4)
    found = overlap(one, Region(pointer=32, shape=(5, 8), strides=(16, 1), itemsize=4))
    assert found is not None
    assert not found.exact
    assert shares_itself(Region(pointer=0, shape=(3, 5, 8), strides=(0, 16, 1), itemsize=4)) == 80
