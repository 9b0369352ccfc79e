"""Where prompts come from: the command line, a text or JSONL file, or the built-in set of very different lengths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from kvpact.errors import InvalidParameter, UnreadableFile
from kvpact.params import SamplingParams

KINDS = ("prompt", "prompt_token_ids", "messages")


class ChatModel(Protocol):
    """What is used of `kvpact.LLM`."""

    @property
    def tokenizer(self) -> Any: ...
    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt as the user gave it: exactly one of text, token_ids and messages.

    raw: text that no chat template may wrap. sampling: its own fields of SamplingParams, over those of the command line.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: tuple[Mapping[str, str], ...] | None = None
    raw: bool = False
    sampling: Mapping[str, Any]

    def title(self) -> str:
        """What a person recognises it by."""
        if self.messages is not None:
            return self.messages[-1]["content"]
        return self.text if self.text is not None else f"{len(self.token_ids or ())} token ids"

    def engine_prompt(self, llm: ChatModel, *, raw: bool) -> Any:
        """As `LLM.generate` takes it. Plain text goes through the chat template where the model has one, unless `raw`."""
        if self.token_ids is not None:
            return {"prompt_token_ids": list(self.token_ids)}
        if self.messages is None and (raw or self.raw or llm.tokenizer.chat_template is None):
            return {"prompt": self.text}
        return llm.chat_prompt(self.messages or ({"role": "user", "content": self.text or ""},))


def read_prompts(texts: Iterable[str], file: Path | None, sampling: Mapping[str, Any]) -> list[Prompt]:
    """The prompts of `-p` and of a file, or the built-in set when neither is given; `sampling` holds the common fields.

    Raises UnreadableFile, and InvalidParameter with the number of the line.
    """
    SamplingParams.from_options(sampling)
    found = [Prompt(text=text, sampling=sampling) for text in texts]
    if file is not None:
        found += read_file(file, sampling)
    elif not found:
        found = parse_jsonl(files("kvpact.cli").joinpath("mixed.jsonl").read_text(encoding="utf-8"), "mixed.jsonl", sampling)
    return found


def read_file(file: Path, sampling: Mapping[str, Any]) -> list[Prompt]:
    """Prompts of `file`: JSONL when it is called `.jsonl`, else one prompt a line. Empty lines are skipped."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(
            f"prompt file {file} can't be read: {getattr(error, 'strerror', None) or error}", hint="name a readable file in UTF-8"
        ) from error
    if file.suffix == ".jsonl":
        found = parse_jsonl(text, str(file), sampling)
    else:
        found = [Prompt(text=line, sampling=sampling) for line in text.splitlines() if line.strip()]
    if not found:
        raise UnreadableFile(f"prompt file {file} holds no prompt", hint="write one prompt a line, or one JSON object a line (.jsonl)")
    return found


def parse_jsonl(text: str, name: str, sampling: Mapping[str, Any]) -> list[Prompt]:
    """One prompt for each line that is not empty."""
    # Not splitlines(): a JSON string may hold a raw U+2028, which is no end of line in JSON.
    return [_parse_line(line, f"{name}, line {number}", sampling) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parse_line(line: str, where: str, sampling: Mapping[str, Any]) -> Prompt:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidParameter(f"{where}: no JSON ({error.msg} at column {error.colno})", hint="write one JSON object a line") from error
    if not isinstance(record, dict) or sum(kind in record for kind in KINDS) != 1:
        raise InvalidParameter(f"{where}: not exactly one of {', '.join(KINDS)}", hint='such as {"prompt": "Hello", "max_tokens": 8}')
    raw = record.pop("raw", False)
    content = {kind: record.pop(kind) for kind in KINDS if kind in record}
    own = {**sampling, **record}
    _check_fields(record, where)
    try:
        SamplingParams.from_options(own)
    except InvalidParameter as error:
        raise InvalidParameter(f"{where}: {error.message}", hint=error.hint) from error
    except TypeError as error:
        raise InvalidParameter(f"{where}: a field has the wrong type ({error})", hint="numbers are written without quotes") from error
    return Prompt(**_checked_content(content, raw, where), sampling=own)


def _check_fields(record: Mapping[str, Any], where: str) -> None:
    known = {item.name for item in fields(SamplingParams)}
    unknown = sorted(set(record) - known)
    if unknown:
        raise InvalidParameter(
            f"{where}: unknown field {', '.join(unknown)}", hint=f"fields are {', '.join((*KINDS, 'raw', *sorted(known)))}"
        )


def _checked_content(content: Mapping[str, Any], raw: Any, where: str) -> dict[str, Any]:
    """The fields of Prompt that hold what was given, or InvalidParameter."""
    if not isinstance(raw, bool):
        raise InvalidParameter(f"{where}: raw is {raw!r}", hint="raw is true or false")
    ((kind, value),) = content.items()
    if kind == "prompt" and isinstance(value, str):
        return {"text": value, "raw": raw}
    if kind == "prompt_token_ids" and isinstance(value, list) and all(type(token) is int and token >= 0 for token in value):
        return {"token_ids": tuple(value)}
    if kind == "messages" and isinstance(value, list) and value and all(_is_message(message) for message in value):
        return {"messages": tuple(value)}
    expected = {"prompt": "text", "prompt_token_ids": "a list of token ids from 0", "messages": 'a list of {"role": text, "content": text}'}
    raise InvalidParameter(f"{where}: {kind} is {value!r}", hint=f"{kind} is {expected[kind]}")


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and set(message) == {"role", "content"} and all(isinstance(text, str) for text in message.values())
