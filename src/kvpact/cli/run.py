"""`kvpact run`: prompts in, texts and a table out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvpact.cli.options import EngineOptions, JsonOption, ModelArgument, SamplingOptions
from kvpact.cli.prompts import Prompt, read_prompts
from kvpact.cli.render import brief, new_table, print_facts, print_json, print_table, show_bytes, show_seconds, show_share
from kvpact.model.builtin import DEFAULT_MODEL
from kvpact.params import SamplingParams

if TYPE_CHECKING:
    from kvpact.engine.llm import LLM
    from kvpact.engine.outputs import EngineStats, GateChecks, RequestOutput


@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """What is asked."""

    prompt: Annotated[list[str] | None, typer.Option("--prompt", "-p", metavar="TEXT", help="A prompt; may be repeated.")] = None
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Prompts, one a line; JSON objects in a .jsonl file.")
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Give text to the model as it is, without its chat template.")] = False


def run(
    prompts: PromptOptions, sampling: SamplingOptions, engine: EngineOptions, model: ModelArgument = DEFAULT_MODEL, json: JsonOption = False
) -> None:
    """Answer prompts together, in one continuous batch, and show what it cost.

    Without -p and --file it runs a built-in set of prompts from 3 to 1,500 tokens. A line of a .jsonl file holds one of
    "prompt", "prompt_token_ids" and "messages", and any sampling field, such as "max_tokens".
    """
    given = read_prompts(prompts.prompt or (), prompts.file, sampling.sampling_fields())
    if sampling.n > 1 and sampling.temperature == 0:
        print("note: greedy answers to one prompt are all the same; --temperature 1 draws different ones", file=sys.stderr)
    llm = engine.open(model)
    outputs = generate(llm, given, raw=prompts.raw)
    stats = llm.engine.stats()
    if json:
        print_json("run", run_document(model, given, outputs, stats))
    else:
        print_texts(given, outputs)
        print_costs(given, outputs, stats)


def generate(llm: LLM, given: Sequence[Prompt], *, raw: bool) -> list[RequestOutput]:
    """All answers, in the order of the prompts, with a progress bar on stderr."""
    engine_prompts = [prompt.engine_prompt(llm, raw=raw) for prompt in given]
    params = [SamplingParams.from_options(prompt.sampling) for prompt in given]
    return llm.generate(engine_prompts, params)


def cost_row(output: RequestOutput) -> dict[str, Any]:
    """One request's figures: tokens and seconds."""
    return {
        "tokens_in": len(output.prompt_token_ids),
        "tokens_out": sum(len(choice.token_ids) for choice in output.outputs),
        "tokens_cached": output.num_cached_tokens,
        "time_to_first_token": output.metrics.time_to_first_token,
        "time_per_output_token": output.metrics.time_per_output_token,
        "num_preemptions": output.metrics.num_preemptions,
    }


def run_document(model: str, given: Sequence[Prompt], outputs: Sequence[RequestOutput], stats: EngineStats) -> dict[str, Any]:
    """The whole run as plain values; times in seconds."""
    requests = [
        {
            "request_id": output.request_id,
            "prompt": prompt.title(),
            **cost_row(output),
            "outputs": [
                {
                    "index": choice.index,
                    "text": choice.text,
                    "token_ids": list(choice.token_ids),
                    "finish_reason": choice.finish_reason,
                    "stop_reason": choice.stop_reason,
                }
                for choice in output.outputs
            ],
        }
        for prompt, output in zip(given, outputs, strict=True)
    ]
    return {"model": model, "requests": requests, "engine": {**asdict(stats), "peak_cache_bytes": stats.peak_cache_bytes}}


def print_texts(given: Sequence[Prompt], outputs: Sequence[RequestOutput]) -> None:
    """Each prompt in brief and its answers in full."""
    for number, (prompt, output) in enumerate(zip(given, outputs, strict=True), 1):
        print(f"[{number}] {brief(prompt.title(), 100)}")
        for choice in output.outputs:
            print("    " + choice.text.strip().replace("\n", "\n    "))
        print()


def print_costs(given: Sequence[Prompt], outputs: Sequence[RequestOutput], stats: EngineStats) -> None:
    """What each request and the whole run took."""
    figures = ("in", "out", "cached", "first token", "per token")
    table = new_table("#", "prompt", *figures, "end", numbers=frozenset(("#", *figures)))
    for number, (prompt, output) in enumerate(zip(given, outputs, strict=True), 1):
        row = cost_row(output)
        table.add_row(
            str(number),
            brief(prompt.title(), 44),
            str(row["tokens_in"]),
            str(row["tokens_out"]),
            str(row["tokens_cached"]),
            show_seconds(row["time_to_first_token"]),
            show_seconds(row["time_per_output_token"]),
            ", ".join(sorted({str(choice.finish_reason) for choice in output.outputs})),
        )
    print_table(table)
    print()
    print_facts(engine_facts(stats))


def gate_line(gate: GateChecks) -> str:
    """What the gate looked at."""
    if gate.level == "off":
        return "off"
    line = f"{gate.level}: {gate.rows:,} rows, {gate.entries:,} entries"
    if gate.level == "full":
        line += f", {gate.tags:,} tags, {gate.score_rows:,} score rows, off by at most {show_share(gate.score_error)} of the bound; an "
        line += f"invisible key would have moved {gate.masked_rows:,} of them by {gate.mask_shift:,.0f} times it"
    return f"{line}, {gate.violations} violations"


def engine_facts(stats: EngineStats) -> dict[str, str]:
    """The pool's and the scheduler's figures, for people."""
    return {
        "blocks at peak": f"{stats.peak_blocks} of {stats.pool_blocks}, {show_bytes(stats.block_bytes)} each",
        "peak cache bytes": show_bytes(stats.peak_cache_bytes),
        "internal waste": show_share(stats.internal_waste),
        "copied bytes": show_bytes(stats.copied_bytes),
        "steps": str(stats.num_steps),
        "preemptions": str(stats.num_preemptions),
        "gate": gate_line(stats.gate),
    }
