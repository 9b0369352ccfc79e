"""The rules of prefix reuse on a healthy engine, and where they must not claim to have seen anything."""

from __future__ import annotations

import pytest

from kvpact.doctor.faults.tiny_engine import Tiny
from kvpact.doctor.faults.tiny_pool import Context
from kvpact.doctor.faults.tiny_session import TinySession
from kvpact.doctor.finding import Outcome
from kvpact.doctor.registry import select
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Capability, Session, Setting

REUSE = ("KV501", "KV502", "KV503", "KV504", "KV505")


class NeverHits(Tiny):
    def most_hit(self, num_tokens: int) -> int:
        return 0


class Blind(Tiny):
    """As a server shows itself: prompts in, rows out, cached tokens told."""

    capabilities = frozenset({Capability.CHUNK, Capability.REUSE, Capability.SALT, Capability.USAGE})


class LastRow(Blind):
    """Only the last token's row, of which only the likeliest tokens."""

    def open(self, setting: Setting) -> Session:
        return _LastRowSession(self, self.pool(setting), setting)


class _LastRowSession(TinySession):
    def feed(self, tokens):  # type: ignore[no-untyped-def]
        shown = {}
        for name, rows in super().feed(tokens).items():
            row = rows[-1] - rows[-1].max()
            row[row.argsort()[:-20]] = float("nan")
            shown[name] = [row]
        return shown


class Misaligned(LastRow):
    """A hit counts one token too many, seen through the last row alone."""

    def hit_tokens(self, num_blocks: int) -> int:
        return num_blocks * self.block_size + 1


class WrongAfterEveryHit(Tiny):
    """Not a boundary: whatever is hit, the position of what follows is wrong."""

    def position(self, position: int, context: Context) -> int:
        return position + 1 if context.cached else position


def _outcomes(target: Tiny, codes: tuple[str, ...]) -> dict[str, Outcome]:
    report = examine(target, select(codes), shrinks=False)
    return {result.code: result.outcome for result in report.results if result.code != "KV001"}


def test_a_healthy_engine_passes_each() -> None:
    assert _outcomes(Tiny(), REUSE) == dict.fromkeys(REUSE, Outcome.PASSED)


def test_an_engine_that_never_hits_is_not_said_to_have_passed() -> None:
    codes = ("KV501", "KV504", "KV505")
    assert _outcomes(NeverHits(), codes) == dict.fromkeys(codes, Outcome.INCONCLUSIVE)


@pytest.mark.parametrize("kind", [Blind, LastRow])
def test_scores_and_cached_tokens_are_enough(kind: type[Tiny]) -> None:
    codes = ("KV501", "KV504", "KV505")
    assert _outcomes(kind(), codes) == dict.fromkeys(codes, Outcome.PASSED)


def test_a_boundary_is_seen_through_the_likeliest_tokens_of_the_last_row() -> None:
    assert _outcomes(Misaligned(), ("KV504",)) == {"KV504": Outcome.FAILED}


def test_what_is_wrong_after_every_hit_is_no_boundary() -> None:
    assert _outcomes(WrongAfterEveryHit(), ("KV504",)) == {"KV504": Outcome.INCONCLUSIVE}


def test_without_a_hit_to_tell_time_says_nothing() -> None:
    assert _outcomes(NeverHits(), ("KV506",))["KV506"] is Outcome.INCONCLUSIVE


class OnAClock(LastRow):
    """Its clock is that of its process, or goes on by a tick at each look."""

    def __init__(self, tick: float) -> None:
        super().__init__()
        self.tick, self.seconds = tick, 0.0

    def clock(self) -> float:
        self.seconds += self.tick
        return super().clock() if not self.tick else self.seconds


def test_first_feeds_are_compared_by_the_targets_own_clock() -> None:
    assert _outcomes(OnAClock(0.0), ("KV506",))["KV506"] is Outcome.PASSED
    assert _outcomes(OnAClock(1.0), ("KV506",))["KV506"] is Outcome.INCONCLUSIVE  # each feed takes a second by it: own hits are not told
