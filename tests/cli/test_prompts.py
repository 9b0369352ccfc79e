"""Prompts from the command line, from files, and built in."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvpact.cli.prompts import Prompt, parse_jsonl, read_file, read_prompts
from kvpact.errors import InvalidParameter, UnreadableFile

SAMPLING = {"max_tokens": 48, "temperature": 0.0}


class Model:
    """Shows what reaches the chat template."""

    def __init__(self, template: str | None = "a template") -> None:
        self.tokenizer = self
        self.chat_template = template

    def chat_prompt(self, messages: object) -> object:
        return ("chat", messages)


def test_texts_of_the_command_line_come_first_and_the_file_after(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("three\n\n  \nfour\n")
    found = read_prompts(["one", "two"], file, SAMPLING)
    assert [prompt.text for prompt in found] == ["one", "two", "three", "four"]
    assert all(prompt.sampling == SAMPLING for prompt in found)


def test_a_text_file_is_taken_line_by_line_even_when_it_looks_like_json(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text('{"prompt": "one"}\n')
    assert [prompt.text for prompt in read_file(file, SAMPLING)] == ['{"prompt": "one"}']


def test_jsonl_takes_each_kind_of_prompt_and_its_own_sampling(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        '{"prompt": "one", "max_tokens": 7, "stop": ["."]}\n'
        '{"prompt_token_ids": [1, 2, 3]}\n'
        '\n{"messages": [{"role": "user", "content": "hi"}], "temperature": 1.5}\n'
        '{"prompt": "raw one", "raw": true}\n'
    )
    one, two, three, four = read_file(file, SAMPLING)
    assert (one.text, one.sampling) == ("one", {"max_tokens": 7, "temperature": 0.0, "stop": ["."]})
    assert (two.token_ids, two.sampling) == ((1, 2, 3), SAMPLING)
    assert (three.messages, three.sampling["temperature"]) == (({"role": "user", "content": "hi"},), 1.5)
    assert (four.text, four.raw) == ("raw one", True)


def test_a_line_separator_inside_a_json_string_is_no_end_of_line() -> None:
    assert [prompt.text for prompt in parse_jsonl('{"prompt": "a\u2028b"}\n', "x.jsonl", SAMPLING)] == ["a\u2028b"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "no JSON"),
        ("[]", "not exactly one of prompt, prompt_token_ids, messages"),
        ("{}", "not exactly one of"),
        ('{"max_tokens": 4}', "not exactly one of"),
        ('{"prompt": "a", "messages": []}', "not exactly one of"),
        ('{"prompt": "a", "max_token": 4}', "unknown field max_token"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0"),
        ('{"prompt": "a", "temperature": "hot"}', "temperature is 'hot'"),
        ('{"prompt": 4}', "prompt is 4"),
        ('{"prompt": "a", "raw": "yes"}', "raw is 'yes'"),
        ('{"prompt_token_ids": [1, -1]}', "prompt_token_ids is [1, -1]"),
        ('{"prompt_token_ids": [1, true]}', "prompt_token_ids is [1, True]"),
        ('{"prompt_token_ids": "12"}', "prompt_token_ids is '12'"),
        ('{"messages": []}', "messages is []"),
        ('{"messages": [{"role": "user"}]}', "messages is"),
        ('{"messages": [{"role": "user", "content": 4}]}', "messages is"),
    ],
)
def test_a_wrong_line_raises_with_its_number(line: str, message: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_jsonl(f'{{"prompt": "fine"}}\n\n{line}\n', "prompts.jsonl", SAMPLING)
    assert caught.value.message.startswith("prompts.jsonl, line 3: ")
    assert message in caught.value.message


def test_an_unknown_field_raises_with_the_fields() -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_jsonl('{"prompt": "a", "beams": 4}', "prompts.jsonl", SAMPLING)
    assert "messages" in caught.value.hint
    assert "max_tokens" in caught.value.hint


def test_a_wrong_option_of_the_command_line_raises_before_any_file_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="temperature is -1"):
        read_prompts([], tmp_path / "none.txt", {"temperature": -1.0})


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe"])
def test_a_file_without_a_prompt_raises(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UnreadableFile) as caught:
        read_file(file, SAMPLING)
    assert str(file) in caught.value.message


def test_the_built_in_set_is_many_prompts_of_very_different_lengths() -> None:
    found = read_prompts([], None, SAMPLING)
    words = [len(prompt.title().split()) for prompt in found]
    assert len(found) >= 8
    assert min(words) <= 3
    assert max(words) >= 1100
    assert any(prompt.messages is not None for prompt in found)


def test_plain_text_goes_through_the_chat_template_unless_it_is_raw() -> None:
    text = Prompt(text="hi", sampling={})
    assert text.engine_prompt(Model(), raw=False) == ("chat", ({"role": "user", "content": "hi"},))
    assert text.engine_prompt(Model(), raw=True) == {"prompt": "hi"}
    assert Prompt(text="hi", raw=True, sampling={}).engine_prompt(Model(), raw=False) == {"prompt": "hi"}
    assert text.engine_prompt(Model(template=None), raw=False) == {"prompt": "hi"}


def test_token_ids_and_messages_are_what_they_are_even_when_text_is_raw() -> None:
    messages = ({"role": "user", "content": "hi"},)
    assert Prompt(token_ids=(1, 2), sampling={}).engine_prompt(Model(), raw=False) == {"prompt_token_ids": [1, 2]}
    assert Prompt(messages=messages, sampling={}).engine_prompt(Model(template=None), raw=True) == ("chat", messages)
