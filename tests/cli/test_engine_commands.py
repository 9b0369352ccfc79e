"""`run`, `chat` and `regress` over a real, tiny model."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvpact.cli.options import EngineOptions
from kvpact.engine.llm import LLM

SMALL = ("--kv-cache-memory", "4MiB", "--threads", "1")


@pytest.fixture
def model(tiny_chat_model: Path) -> str:
    return str(tiny_chat_model)


def test_run_prints_texts_and_a_table(kvpact, model: str) -> None:
    code, out, err = kvpact("run", model, "-p", "Hello", "-p", "What is the sea, and why is it salt?", "--max-tokens", "6", *SMALL)
    assert (code, err) == (0, "")
    assert "[1] Hello" in out
    assert "[2] What is the sea, and why is it salt?" in out
    facts = ("first token", "per token", "cached", "blocks at peak", "peak cache bytes", "internal waste", "steps", "preemptions", "gate  ")
    assert [fact for fact in facts if fact not in out] == []


def test_run_as_a_document_holds_tokens_times_and_the_pool(kvpact, model: str) -> None:
    code, out, _ = kvpact("run", model, "-p", "Hello", "--max-tokens", "6", "-n", "2", "--temperature", "1", "--json", *SMALL)
    document = json.loads(out)
    assert (code, document["kind"], document["schema_version"]) == (0, "run", 1)
    (request,) = document["requests"]
    assert request["prompt"] == "Hello"
    assert request["tokens_in"] == len("<user>Hello\n<assistant>")
    assert request["tokens_out"] == sum(len(choice["token_ids"]) for choice in request["outputs"])
    assert [choice["index"] for choice in request["outputs"]] == [0, 1]
    assert request["time_to_first_token"] > 0
    assert document["engine"]["peak_cache_bytes"] == document["engine"]["peak_blocks"] * document["engine"]["block_bytes"] > 0


def test_raw_text_skips_the_chat_template(kvpact, model: str) -> None:
    _, out, _ = kvpact("run", model, "-p", "Hello", "--raw", "--max-tokens", "1", "--json", *SMALL)
    assert json.loads(out)["requests"][0]["tokens_in"] == len("Hello")


def test_a_file_s_fields_go_over_the_command_line_s(kvpact, model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt_token_ids": [1, 2, 3], "max_tokens": 2, "ignore_eos": true}\n{"prompt": "Hi", "ignore_eos": true}\n')
    _, out, _ = kvpact("run", model, "--file", str(file), "--max-tokens", "5", "--json", *SMALL)
    assert [(request["tokens_out"]) for request in json.loads(out)["requests"]] == [2, 5]


def test_the_cache_trace_goes_to_stderr_and_data_to_stdout(kvpact, model: str) -> None:
    code, out, err = kvpact("run", model, "-p", "Hello", "--max-tokens", "2", "--trace", "cache", "--json", *SMALL)
    assert code == 0
    json.loads(out)
    assert err.startswith("step 0 request 0.0 group full computes [0, 23) reads 23 keys ")


def test_a_switch_reaches_the_engine(kvpact, model: str) -> None:
    sizes = []
    for block_size in ("4", "32"):
        _, out, _ = kvpact("run", model, "-p", "Hello", "--max-tokens", "2", "--json", "--switch", f"block_size={block_size}", *SMALL)
        sizes.append(json.loads(out)["engine"]["block_bytes"])
    assert sizes[1] == 8 * sizes[0]


@pytest.mark.parametrize(
    ("prompt", "extra", "code_word"),
    [("", ("--raw",), "empty-prompt"), ("Hello " * 40, ("--max-model-len", "64"), "prompt-too-long")],
)
def test_a_refused_prompt_ends_the_run_with_a_hint(kvpact, model: str, prompt: str, extra: tuple[str, ...], code_word: str) -> None:
    code, out, err = kvpact("run", model, "-p", prompt, *extra, *SMALL)
    assert (code, out) == (2, "")
    assert f"[{code_word}]" in err
    assert "hint: " in err


def talk(kvpact, monkeypatch: pytest.MonkeyPatch, model: str, typed: str, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    return kvpact("chat", model, "--max-tokens", "4", *SMALL, *arguments)


def test_chat_reads_a_pipe_and_answers_every_line(kvpact, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = talk(kvpact, monkeypatch, model, "Hello\n\nAnd you?\n", "--verbose")
    assert code == 0
    assert err.count("tokens in") == 2


def test_a_second_turn_finds_the_first_one_cached_until_a_reset(kvpact, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = "Tell me about the sea, please."
    _, _, err = talk(kvpact, monkeypatch, model, f"{opening}\nMore\n/reset\nOther things\n", "--verbose")
    first, second, notice, third = err.splitlines()
    assert ", 0 of them cached," in first
    prompt_tokens = len(f"<user>{opening}\n<assistant>")
    assert f", {prompt_tokens // 16 * 16} of them cached," in second
    assert notice == "(a new conversation)"
    assert ", 0 of them cached," in third


def test_exit_leaves_and_an_unknown_command_is_named(kvpact, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = talk(kvpact, monkeypatch, model, "/quit\n/exit\nnever asked\n", "--verbose")
    assert (code, out) == (0, "")
    assert err == "no command /quit; there are /reset and /exit\n"


def test_a_refused_turn_is_reported_and_the_conversation_goes_on(kvpact, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = f"{'very ' * 40}long\nshort\n"
    code, _, err = talk(kvpact, monkeypatch, model, typed, "--max-model-len", "128", "--verbose")
    assert code == 0
    assert "[prompt-too-long]" in err
    assert f"[{len('<user>short<assistant>') + 1} tokens in, 0 of them cached," in err


def test_regress_runs_the_pair_and_judges_it(kvpact, model: str) -> None:
    code, out, _ = kvpact("regress", model, "--max-tokens", "8", "--json", *SMALL)
    document = json.loads(out)
    assert len(document["answers"]) == 8
    assert [finding for finding in document["findings"] if finding["check"] in ("differs", "second-half")] == []
    hits = {answer["prompt"]: answer["num_cached_tokens"] for answer in document["answers"] if "prefix hit" in answer["way"]}
    assert hits["long"] > 0
    assert code == (0 if document["healthy"] else 1)


def test_regress_finds_what_changed_since_a_baseline(kvpact, model: str, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.json"
    kvpact("regress", model, "--max-tokens", "4", "--record", str(baseline), *SMALL)
    _, out, _ = kvpact("regress", model, "--max-tokens", "4", "--against", str(baseline), *SMALL)
    assert "baseline:" not in out
    document = json.loads(baseline.read_text())
    document["answers"]["short"]["token_ids"][0] += 1
    baseline.write_text(json.dumps(document))
    code, out, _ = kvpact("regress", model, "--max-tokens", "4", "--against", str(baseline), *SMALL)
    assert code == 1
    assert "baseline: short, alone: differs from the baseline at token 0" in out


def test_regress_finds_a_mask_that_vanishes_on_the_batch_path(kvpact, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is real: whoever stands second in a batch sees the future."""

    def open_with_fault(options: EngineOptions, name: str) -> LLM:
        llm = healthy_open(options, name)
        llm.engine.inject.install("mask", lambda rule, index: replace(rule, causal=False) if index == 1 else rule)
        return llm

    healthy_open = EngineOptions.open
    monkeypatch.setattr(EngineOptions, "open", open_with_fault)
    baseline = tmp_path / "baseline.json"
    code, out, err = kvpact("regress", model, "--max-tokens", "8", "--record", str(baseline), *SMALL)
    assert code == 1
    assert "differs: short, together, long first: differs from the answer alone" in out
    assert not baseline.exists()
    assert "is not written" in err
