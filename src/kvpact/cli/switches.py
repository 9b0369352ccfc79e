"""`kvpact switches`: every optimisation that can be turned off."""

from __future__ import annotations

from typing import Any

from kvpact.cli.options import JsonOption
from kvpact.cli.render import new_table, print_json, print_table
from kvpact.switches import SWITCHES, Switch


def switches(json: JsonOption = False) -> None:
    """List every optimisation that can be turned off, with its contract.

    Set one anywhere with --switch NAME=VALUE. A contract says what a switch may change in an answer: bits (nothing, on
    operators that promise bits; rounding on the others), tolerance (rounding), lossy (the numbers themselves).
    """
    rows = [describe(switch) for switch in SWITCHES.values()]
    if json:
        print_json("switches", {"switches": rows})
        return
    table = new_table("switch", "values", "default", "contract", "what it does")
    for row in rows:
        values = " | ".join(row["values"]) or f"number from {row['minimum']}"
        table.add_row(row["name"], values, row["default"], row["contract"], row["doc"])
    print_table(table)


def describe(switch: Switch) -> dict[str, Any]:
    """One switch as plain values."""
    return {
        "name": switch.name,
        "field": switch.field,
        "values": list(switch.values),
        "minimum": None if switch.values else switch.minimum,
        "default": switch.default(),
        "contract": switch.contract.value,
        "doc": switch.doc,
    }
