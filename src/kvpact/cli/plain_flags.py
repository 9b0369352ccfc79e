"""Commands whose help is plain: no type beside a flag (newer typers print `<bool>` there, which asks for a value that it does not take),
and paragraphs that break where the terminal ends, not where a docstring's lines do."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup


class PlainCommand(TyperCommand):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")

    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _plain(super().get_params(ctx))


def _plain(params: list[Any]) -> list[Any]:
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params
