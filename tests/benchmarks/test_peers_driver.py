"""The driver of the peer benchmarks, with a worker that echoes instead of an engine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"

#: Answers each prompt with its own ids in reverse, notes its name and the time in a journal, and fails as it is told to.
ECHO = """
import json, os, sys, time
name, journal, mode = sys.argv[1:4]
if mode == "no-start":
    sys.exit("no such model")
print(json.dumps({"ready": True, "versions": {name: "1"}}), flush=True)
for number, line in enumerate(sys.stdin):
    job = json.loads(line)["run"]
    if number and mode == "dies":
        sys.exit("out of memory")
    if number and mode == "hangs":
        time.sleep(60)
    with open(journal, "a") as out:
        out.write(json.dumps([name, job["prompts"]]) + "\\n")
    tokens = [ids[::-1][:job["max_tokens"]] for ids in job["prompts"]]
    seconds = 1.0 if name == "kvpact" else 2.0
    answer = {"seconds": seconds, "first_token_seconds": 0.5, "tokens_out": sum(map(len, tokens)), "tokens": tokens}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _on_the_path() -> Iterator[None]:
    """The scripts import each other by plain names, as Python does for a script's own folder."""
    sys.path[:0] = [str(PEERS), str(PEERS.parent)]
    yield
    del sys.path[:2]


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Any]:
    from engines import Engine, Unavailable
    from rounds import Crew

    class Echo(Engine):
        def command(self) -> list[str]:
            if self.worker == "missing":
                raise Unavailable("no environment for it")
            return [sys.executable, "-c", ECHO, self.label, str(tmp_path / "journal"), self.worker]

    modes = {"kvpact": "well", "peer": "well", "other": "well", "dead": "dies", "unstartable": "no-start", "absent": "missing"}
    engines = {name: Echo(label=name, worker=mode, gib=0) for name, mode in modes.items()}
    with Crew(engines) as crew:
        yield crew


def journal(folder: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (folder / "journal").read_text().splitlines()]


def played(crew: Any, names: list[str], *, rounds: int = 2, budget: float = 100.0, group: int = 1) -> Any:
    from rounds import Plan, play

    plan = Plan(max_tokens=2, rounds=rounds, budget=budget, group=group)
    return play(crew, names, lambda seed: [[len(seed), 7, 8]], plan)


def state(pid: int) -> str:
    """R, S, T (stopped), ... as proc(5) has it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def comes_true(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    """A signal takes effect a moment after it was sent."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)
    return holds()


def test_kvpact_runs_right_before_each_peer_on_the_same_prompts(crew: Any, tmp_path: Path) -> None:
    outcome = played(crew, ["peer", "other"])
    runs = [entry for entry in journal(tmp_path) if len(entry[1][0]) == 3]
    assert [name for name, _ in runs] == ["kvpact", "peer", "kvpact", "other"] * 2
    assert all(ours[1] == theirs[1] for ours, theirs in zip(runs[::2], runs[1::2], strict=True))
    assert {name: len(pairs) for name, pairs in outcome.pairs.items()} == {"peer": 2, "other": 2}


def test_a_group_of_peers_shares_the_run_of_kvpact_before_it(crew: Any, tmp_path: Path) -> None:
    outcome = played(crew, ["peer", "other"], rounds=1, group=2)
    assert [name for name, prompts in journal(tmp_path) if len(prompts[0]) == 3] == ["kvpact", "peer", "other"]
    assert outcome.pairs["peer"][0][0] is outcome.pairs["other"][0][0]


def test_an_answer_is_parsed_into_seconds_and_tokens(crew: Any) -> None:
    outcome = played(crew, ["peer"], rounds=1)
    ours, theirs = outcome.pairs["peer"][0]
    assert (ours.seconds, theirs.seconds, theirs.first_token, theirs.tokens_out, theirs.tokens) == (1.0, 2.0, 0.5, 2, [[8, 7]])


def test_a_budget_ends_the_rounds_but_everyone_has_one_pair(crew: Any) -> None:
    outcome = played(crew, ["peer", "other"], rounds=9, budget=10.0)
    assert {name: len(pairs) for name, pairs in outcome.pairs.items()} == {"peer": 2, "other": 1}
    assert {len(pairs) for pairs in played(crew, ["peer", "other"], budget=0.1).pairs.values()} == {1}


def test_what_cannot_be_had_is_skipped_with_its_reason_and_the_rest_goes_on(crew: Any) -> None:
    from report import section

    outcome = played(crew, ["absent", "unstartable", "peer"])
    assert outcome.skipped["absent"] == "no environment for it"
    assert "exit status 1; last words: no such model" in outcome.skipped["unstartable"]
    body = section("short", "One short prompt", "16 in.", outcome)
    assert "Not measured: absent: no environment for it." in body
    assert "| peer | 1.0 (1.0 to 1.0) | 0.7 (0.7 to 0.7) | 0.500 (0.500 to 0.500) | 2.00 (2.00 to 2.00) | 2 |" in body


def test_a_worker_that_dies_is_reported_and_not_asked_again(crew: Any) -> None:
    outcome = played(crew, ["dead", "peer"])
    assert "it ended with exit status 1; last words: out of memory" in outcome.skipped["dead"]
    assert (len(outcome.pairs["dead"]), len(outcome.pairs["peer"])) == (0, 2)
    assert "out of memory" in played(crew, ["dead"]).skipped["dead"]


def test_a_worker_that_hangs_is_ended_within_its_limit(tmp_path: Path) -> None:
    from worker import Worker, WorkerDied

    worker = Worker("slow", [sys.executable, "-c", ECHO, "slow", str(tmp_path / "journal"), "hangs"], log=tmp_path / "log")
    worker.run([[1]], 1)
    start = time.monotonic()
    with pytest.raises(WorkerDied, match="no answer in 1 s"):
        worker.run([[1]], 1, limit=1)
    assert time.monotonic() - start < 10
    assert worker.ended


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the state of a process is read from /proc")
def test_a_worker_is_stopped_while_it_has_nothing_to_do(tmp_path: Path) -> None:
    from worker import Worker

    worker = Worker("idle", [sys.executable, "-c", ECHO, "idle", str(tmp_path / "journal"), "well"], log=tmp_path / "log")
    try:
        for _ in range(2):
            assert comes_true(lambda: state(worker.pid) == "T"), state(worker.pid)
            worker.run([[1]], 1)
    finally:
        worker.close()


def test_a_section_is_replaced_between_its_markers_and_the_rest_stays(tmp_path: Path) -> None:
    from report import write_section

    path = tmp_path / "benchmarks.md"
    path.write_text("# Benchmarks\n\nby hand\n")
    for name, body in (("one", "first"), ("two", "second"), ("one", "third")):
        write_section(path, name, body)
    text = path.read_text()
    assert "by hand" in text
    assert "first" not in text
    assert text.index("third") < text.index("second")
    assert text.count("<!-- begin:") == 2


def test_agreement_says_where_token_ids_part() -> None:
    from agreement import agreement
    from worker import Result

    def answer(*tokens: int) -> Result:
        return Result(1.0, None, len(tokens), [list(tokens)])

    same = (answer(1, 2, 3), answer(1, 2, 3))
    assert agreement([same]) == "the same as kvpact's in all 1 answers"
    assert "in 1 of 2 answers; the others part at token 2" in agreement([same, (answer(1, 2, 3), answer(1, 2, 9))])
