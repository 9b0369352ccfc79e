"""The group under `kvpact doctor`: a first word that is no command is a target, so `kvpact doctor TARGET` examines it."""

from __future__ import annotations

import copy
from typing import Any

from kvpact.cli.plain_flags import PlainGroup

#: The command that a bare target means.
DEFAULT = "examine"


class DoctorGroup(PlainGroup):
    """Its help shows the options of the command that a bare target means."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown = copy.copy(self)
        shown.params = [*self.commands[DEFAULT].params, *self.params]
        shown.subcommand_metavar = "| COMMAND ..."
        super(DoctorGroup, shown).format_help(ctx, formatter)
