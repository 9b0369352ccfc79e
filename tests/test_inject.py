"""Fault-injection points: named, off by default, and gone when they are cleared."""

from dataclasses import fields

import pytest

from kvpact.errors import UnknownInjectionPoint
from kvpact.inject import POINTS, InjectionPoints


def keep(value: object, *context: object) -> object:
    return value


def test_the_points_are_these() -> None:
    assert list(POINTS) == ["mask", "positions", "slots", "block_table", "lengths", "release", "rollback"]


def test_points_and_fields_are_the_same_names() -> None:
    assert [item.name for item in fields(InjectionPoints)] == list(POINTS)


def test_every_point_is_off_at_first() -> None:
    assert all(getattr(InjectionPoints(), name) is None for name in POINTS)


@pytest.mark.parametrize("name", POINTS)
def test_installing_turns_on_that_point_alone(name: str) -> None:
    points = InjectionPoints()
    points.install(name, keep)
    assert [point for point in POINTS if getattr(points, point) is not None] == [name]
    assert getattr(points, name) is keep


def test_clearing_takes_every_fault_out() -> None:
    points = InjectionPoints()
    for name in POINTS:
        points.install(name, keep)
    points.clear()
    assert points == InjectionPoints()


def test_points_of_two_engines_are_apart() -> None:
    first, second = InjectionPoints(), InjectionPoints()
    first.install("mask", keep)
    assert second.mask is None


def test_an_unknown_point_raises_with_the_list() -> None:
    with pytest.raises(UnknownInjectionPoint) as caught:
        InjectionPoints().install("install", keep)
    assert all(name in caught.value.hint for name in POINTS)


def test_a_point_can_t_be_set_by_a_misspelt_attribute() -> None:
    with pytest.raises(AttributeError):
        InjectionPoints().masks = keep  # type: ignore[attr-defined]
