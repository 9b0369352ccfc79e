"""Ctrl-C at any place of a step ends it only when it is whole: nothing is left reserved, and the request can be ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from kvpact.engine.engine import Engine
from kvpact.engine.interrupt import Uninterrupted
from kvpact.params import SamplingParams
from runs import prompt

#: Where the key is pressed: an object of the engine, and its method.
PLACES = [("_scheduler", "schedule"), ("_runner", "run"), ("manager", "commit"), ("_lifecycle", "apply")]


def pressed_at(engine: Engine, place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is pressed when the method has done its work."""
    part = getattr(engine, place[0])
    healthy = getattr(part, place[1])

    def press(*arguments, **named):
        result = healthy(*arguments, **named)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(part, place[1], press)


@pytest.fixture(autouse=True)
def foreground() -> Iterator[None]:
    """Python's own handler, which is absent in what a shell starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def engine(make_engine) -> Engine:
    made = make_engine("llama", "ops=torch")
    made.add({"prompt_token_ids": prompt(9)}, SamplingParams(max_tokens=50, ignore_eos=True), request_id="a")
    made.step()
    return made


@pytest.mark.parametrize("place", PLACES)
def test_a_step_is_whole_before_ctrl_c_ends_it(engine: Engine, place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        pressed_at(engine, place, patch)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    engine.manager.check()
    ended = engine.abort("a")
    assert ended is not None
    assert len(ended.outputs[0].token_ids) == 2  # of the step before, and of this one
    assert engine.manager.usage().held == 0


def test_without_the_guard_a_step_breaks_off_with_room_reserved(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpact.engine.engine.Uninterrupted", nullcontext)
    pressed_at(engine, ("_scheduler", "schedule"), monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    with pytest.raises(AssertionError, match="while a reservation of it is open"):
        engine.abort("a")


def test_a_program_s_own_handler_stays_in_charge() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with Uninterrupted():
            signal.raise_signal(signal.SIGINT)
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_s_steps_leave_the_handler_alone() -> None:
    handlers: list[object] = []

    def look() -> None:
        with Uninterrupted():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
