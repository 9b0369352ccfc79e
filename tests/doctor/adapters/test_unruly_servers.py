"""Servers that die, hang, refuse or lie: an examination ends in time and says why, and what can be examined still is."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvpact.cli.main import main
from kvpact.doctor.adapters.server.client import Client
from kvpact.doctor.adapters.server.target import connect
from kvpact.doctor.errors import TargetFailed, TargetUnusable
from kvpact.doctor.finding import Outcome, Result, passed
from kvpact.doctor.program import Program, feed
from kvpact.doctor.registry import select
from kvpact.doctor.rule import Page, Rule, Way
from kvpact.doctor.runner import examine
from kvpact.doctor.target import Setting
from served import Asked, Manners, Mischief, Sent, Served, serving

TOKENS = (20, 30, 40, 50)


class Switch:
    """Mischief that begins when it is told to, for so many requests."""

    def __init__(self, sent: Sent, times: int = 1 << 30) -> None:
        self.sent, self.left, self.on = sent, times, False

    def __call__(self, number: int, asked: Asked) -> Sent | None:
        if not self.on or self.left <= 0:
            return None
        self.left -= 1
        return self.sent


def rule(code: str, do: Callable[[Any], object]) -> Rule:
    def check(exam: Any) -> Any:
        do(exam)
        return passed("it answered")

    return Rule(
        code=code,
        page=Page(symptoms=(), checks="", matters="", lookalikes="", causes=()),
        ways=(Way(name="ask", needs=frozenset(), check=check),),
    )


def ask(exam: Any) -> None:
    exam.run(Program(steps=feed("a", TOKENS)))


def outcomes(sent: Sent, times: int = 1 << 30, timeout: float = 5.0) -> tuple[list[Outcome], str, float]:
    """Of three rules, the second of which meets the mischief; with its reason, and the seconds that all took."""
    mischief = Switch(sent, times)

    def meet(exam: Any) -> None:
        mischief.on = True
        try:
            ask(exam)
        finally:
            mischief.on = False

    with serving(mischief=mischief) as served:
        target = connect(served.url, timeout=timeout)
        start = time.monotonic()
        report = examine(target, (rule("KV101", ask), rule("KV102", meet), rule("KV103", ask)))
        seconds = time.monotonic() - start
    return [result.outcome for result in report.results], report.results[1].reason, seconds


GOOD, BAD = Outcome.PASSED, Outcome.ERROR


def answer(**logprobs: Any) -> Sent:
    return Sent(body=json.dumps({"choices": [{"logprobs": logprobs}]}).encode())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (Sent(status=500, body=b'{"error": {"message": "out of memory"}}'), "status 500, 'out of memory'"),
        (Sent(status=500, body=b"<html>oops</html>"), "status 500, '<html>oops</html>'"),
        (Sent(body=b'{"choices": ['), "is not a JSON object, and begins with"),
        (Sent(body=b"[]"), "is not a JSON object, and begins with"),
        (Sent(body=b"{}"), "no log-probabilities in a form that is known"),
        (answer(top_logprobs=[]), "no log-probabilities in a form that is known"),
        (answer(top_logprobs=[{}]), "no log-probability at all"),
        (answer(top_logprobs=[{"token_id:3": float("nan")}]), "a log-probability is nan"),
        (answer(top_logprobs=[{"token_id:3": 0.5}]), "a log-probability is 0.5, above zero"),
        (answer(top_logprobs=[{"token_id:3": None}]), "no log-probabilities in a form that is known|is None"),
        (answer(top_logprobs=[{"token_id:x": -1.0}]), "no log-probabilities in a form that is known"),
        (Sent(body=b'{"choices": []}' + b" " * 999, cut=20), "broke off in the middle of an answer|IncompleteRead"),
        (Sent(body=b"", cut=0, headers={"Transfer-Encoding": "chunked"}), "the connection failed"),
    ],
)
def test_a_bad_answer_is_an_error_of_its_rule_with_the_reason_and_the_others_go_on(sent: Sent, reason: str) -> None:
    found, said, _ = outcomes(sent)
    assert found == [GOOD, BAD, GOOD]
    assert re.search(reason, said), said


@pytest.mark.parametrize("sent", [Sent(hang=True), Sent(body=b"x" * 600, drip=0.1)])
def test_a_server_that_hangs_or_drips_is_given_up_in_time(sent: Sent) -> None:
    found, said, seconds = outcomes(sent, timeout=0.5)
    assert found == [GOOD, BAD, GOOD]
    assert "no answer within 0.5 s" in said
    assert seconds < 20  # and not the minute that the answer takes


def test_a_server_that_fails_at_everything_is_not_asked_whether_it_offers_log_probabilities() -> None:
    def boom(number: int, asked: Asked) -> Sent:
        return Sent(status=500, body=b'{"error": {"message": "boom"}}')

    with serving(mischief=boom) as served, pytest.raises(TargetUnusable) as failed:
        connect(served.url)
    assert failed.value.message.count("boom") == 1
    assert failed.value.hint == "look at the server's log"


def test_only_a_server_that_has_answered_can_be_still_running() -> None:
    with serving() as served:
        client = Client(served.url)
        assert client.get("/v1/models").ok
        served.stop()
        with pytest.raises(TargetFailed) as gone:
            client.get("/models")
        with pytest.raises(TargetUnusable) as never:
            connect(served.url)
    assert gone.value.hint == "is the server still running?"
    assert never.value.hint == "is a server running at this address and port?"


def test_a_busy_server_is_asked_again_after_the_pause_that_it_wants() -> None:
    found, _, seconds = outcomes(Sent(status=429, headers={"Retry-After": "1"}), times=1)
    assert found == [GOOD, GOOD, GOOD]
    assert seconds >= 1


def test_a_server_that_stays_busy_is_an_error_in_the_end() -> None:
    found, said, seconds = outcomes(Sent(status=503, body=b'{"error": "later"}'), timeout=1.0)
    assert found == [GOOD, BAD, GOOD]
    assert "busy" in said
    assert seconds < 20


def test_a_pause_longer_than_the_timeout_is_not_waited_for() -> None:
    found, _, seconds = outcomes(Sent(status=429, headers={"Retry-After": "3600"}))
    assert found == [GOOD, BAD, GOOD]
    assert seconds < 20


def test_a_server_that_dies_half_way_leaves_errors_and_what_was_examined_before() -> None:
    with serving() as served:
        target = connect(served.url, timeout=5)
        report = examine(target, (rule("KV101", ask), rule("KV102", lambda exam: served.stop()), rule("KV103", ask), rule("KV104", ask)))
    assert [result.outcome for result in report.results] == [GOOD, GOOD, BAD, BAD]
    assert "the connection failed: ConnectionRefusedError" in report.results[2].reason


def test_untrue_counts_are_an_error_only_for_who_asks_for_them() -> None:
    counts = [-3, 4000]
    for count in counts:
        with serving() as served:
            target = connect(served.url)
            session = target.open(Setting())
            usual = served.usual

            def lying(asked: Asked, count: int = count, usual: Callable[[Asked], Sent] = usual) -> Sent:
                sent = usual(asked)
                body = json.loads(sent.body)
                body["usage"]["prompt_tokens_details"]["cached_tokens"] = count
                return Sent(body=json.dumps(body).encode())

            served.usual = lying  # type: ignore[method-assign]
            assert session.feed({"a": TOKENS})["a"]
            with pytest.raises(TargetFailed, match=f"counts 4 tokens, {count} of them cached"):
                session.cached_tokens("a")


def test_ids_that_are_counted_as_many_more_tokens_are_not_believed_to_be_ids() -> None:
    with serving(extra_prompt_tokens=1) as served:
        assert connect(served.url).limits.ids
    with serving(extra_prompt_tokens=9) as served:
        assert not connect(served.url).limits.ids


def test_no_redirect_is_followed() -> None:
    with serving() as other, serving(mischief=redirect_to(other)) as served, pytest.raises(TargetUnusable, match="redirect, status 307"):
        connect(served.url)
    assert other.asked == []


def redirect_to(other: Served) -> Mischief:
    return lambda number, asked: Sent(status=307, headers={"Location": f"{other.host}{asked.path}"})


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as proxy, serving() as served:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.host)
        monkeypatch.delenv("no_proxy", raising=False)
        connect(served.url)
        assert served.asked
        assert proxy.asked == []


def test_the_key_is_sent_and_never_shown() -> None:
    def tell(number: int, asked: Asked) -> Sent | None:
        told = asked.headers.get("Authorization", "")
        return Sent(status=500, body=json.dumps({"error": {"message": f"bad: {told}"}}).encode()) if "prompt" in asked.body else None

    with serving(key="s3cret") as served:
        assert connect(served.url, key="s3cret").limits.ids
        with pytest.raises(TargetUnusable, match=r"lets nobody in.*401") as refused:
            connect(served.url, key="wr0ng")
        assert "--api-key-env" in refused.value.hint
    with serving(key="s3cret", mischief=tell) as served, pytest.raises(TargetUnusable, match=r"bad: Bearer \*\*\*") as failed:
        connect(served.url, key="s3cret")
    assert "s3cret" not in str(failed.value) + repr(failed.value) + str(refused.value)


def run_cli(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["kvpact", "doctor", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_what_is_asked_is_said_before_a_server_that_hangs_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(mischief=lambda number, asked: Sent(hang=True)) as served:
        assert run_cli(monkeypatch, served.url, "--timeout", "0.2") == 2
        out, err = capsys.readouterr()
        assert (out, err.splitlines()[0]) == ("", f"asking {served.url} (up to 0.2 s a request)")
        run_cli(monkeypatch, served.url, "--timeout", "0.2", "--quiet")
        assert "asking" not in capsys.readouterr().err
    run_cli(monkeypatch, "http://me:s3cret@localhost:1/v1")
    assert "s3cret" not in capsys.readouterr().err


def test_the_command_ends_with_2_where_nothing_can_be_examined(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as served:
        served.stop()
        assert run_cli(monkeypatch, served.url, "--timeout", "2") == 2
    assert "can't be examined: the connection failed" in capsys.readouterr().err


def test_the_command_takes_its_key_from_the_environment_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", "s3cret")
    with serving(key="s3cret") as served:
        assert run_cli(monkeypatch, served.url, "--select", "KV001", "--api-key-env", "KEY_OF_THE_TEST") == 0
        assert run_cli(monkeypatch, served.url, "--select", "KV001", "--api-key-env", "NOT_SET_ANYWHERE") == 2
    out = capsys.readouterr()
    assert "s3cret" not in out.out + out.err
    assert "NOT_SET_ANYWHERE holds no key" in out.err


def test_requests_of_one_feed_are_under_way_together() -> None:
    """Four requests that all wait for each other can only end when they are sent at once."""
    gate = threading.Barrier(4, timeout=10)
    meet = Switch(Sent(), times=0)

    def together(number: int, asked: Asked) -> Sent | None:
        if meet.on:
            gate.wait()
        return None

    with serving(mischief=together) as served:
        session = connect(served.url).open(Setting())
        meet.on = True
        rows = session.feed({name: (*TOKENS, 60 + place) for place, name in enumerate("abcd")})
    assert len(rows) == 4


def test_a_client_gives_up_one_connection_after_the_other_and_leaves_none_open() -> None:
    with serving(mischief=Switch(Sent())) as served:
        client = Client(served.url, timeout=5)
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        for _ in range(30):
            client.get("/v1/models")
        time.sleep(0.1)
        after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 2
    assert len(served.asked) == 30
    assert Manners().mischief is None


FALLS_OVER = Sent(status=500, body=b'{"error": "a lost block"}')
HANGS_UP = Sent(body=b"", cut=0, headers={"Transfer-Encoding": "chunked"})


@pytest.mark.parametrize(
    ("sent", "said"),
    [(HANGS_UP, "the connection failed"), (FALLS_OVER, "status 500, 'a lost block'")],
)
def test_a_connection_that_breaks_is_no_untrue_capability(sent: Sent, said: str) -> None:
    """The first prompt is answered, and all that come after it at once are not, as by a server that falls over a hit."""
    result = untrue(sent)
    assert result.outcome is Outcome.ERROR
    assert said in result.reason


def test_what_a_server_refuses_although_it_was_declared_is_an_untrue_capability() -> None:
    result = untrue(Sent(status=400, body=b'{"error": "no second prompt"}'))
    assert result.outcome is Outcome.FAILED
    assert "no second prompt" in result.findings[0].got


def untrue(sent: Sent) -> Result:
    """KV002, where all but its first request are answered so."""
    switch = Switch(sent)
    with serving(mischief=lambda number, asked: switch(number, asked) if number > last else None) as served:
        last = 1 << 30
        target = connect(served.url, timeout=5)
        last, switch.on = len(served.asked) + 1, True
        (result,) = examine(target, select(["KV002"])[-1:]).results
    return result
