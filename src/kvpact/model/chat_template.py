"""Renders a model's chat template as transformers does: sandboxed, with the same filters, functions and white space."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvpact.errors import InvalidParameter, UnsupportedModel


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as an instance's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class ChatTemplate:
    """A compiled template; `special` are the names of special tokens that it may use, such as bos_token.

    Raises UnsupportedModel when the source is not a template.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self.source = source
        self._special = dict(special)
        self._template = _compile(source)

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **extra: Any) -> str:
        """The prompt's text. Raises InvalidParameter with the template's own message when it refuses the messages."""
        values = {"tools": None, "documents": None, **self._special, **extra}
        try:
            return self._template.render(messages=_checked(messages), add_generation_prompt=add_generation_prompt, **values)
        except InvalidParameter:
            raise
        except Exception as error:  # a template is a program of the model's; what it can raise has no limit
            raise InvalidParameter(
                f"the model's chat template refuses these messages: {error}",
                hint='messages are a list of {"role": ..., "content": ...}; roles and their order are the model\'s choice',
            ) from error


def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise UnsupportedModel(
            f"the model's chat template can't be compiled: {error}", hint="pass a prompt's text instead of messages"
        ) from error


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes, Mapping)):
        raise InvalidParameter(f"messages are a {type(messages).__name__}", hint='give a list: [{"role": "user", "content": "..."}]')
    if not messages:
        raise InvalidParameter("there are no messages", hint='give at least one: [{"role": "user", "content": "..."}]')
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidParameter(f"message {index} has no role: {message!r}", hint='a message is {"role": ..., "content": ...}')
    return [dict(message) for message in messages]
