"""`kvpact chat`: a conversation whose every turn computes only what is new."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from kvpact.cli.options import EngineOptions, ModelArgument
from kvpact.cli.prompts import Prompt
from kvpact.errors import RequestError
from kvpact.model.builtin import DEFAULT_MODEL
from kvpact.params import SamplingParams

if TYPE_CHECKING:
    from kvpact.engine.llm import LLM
    from kvpact.engine.outputs import RequestOutput

MAX_TOKENS = 512

SystemOption = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="What the model is told before the conversation.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="After each answer: tokens in, cached and out.")]
TokensOption = Annotated[int, typer.Option("--max-tokens", metavar="N", help="Most tokens of an answer.")]
TemperatureOption = Annotated[float, typer.Option(help="0 is greedy.")]


def chat(
    engine: EngineOptions,
    model: ModelArgument = DEFAULT_MODEL,
    system: SystemOption = None,
    max_tokens: TokensOption = MAX_TOKENS,
    temperature: TemperatureOption = 0.0,
    verbose: VerboseOption = False,
) -> None:
    """Talk to a model. /reset forgets the conversation, /exit or the end of input leaves.

    Earlier turns are found in the prefix cache, so a turn computes only what is new; --verbose shows how much that saves.
    """
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    llm = engine.open(model)
    talk(Conversation(llm, params, system=system), read_lines(), verbose=verbose)


class Conversation:
    """The messages so far, and the model that answers them."""

    def __init__(self, llm: LLM, params: SamplingParams, *, system: str | None = None) -> None:
        self.llm = llm
        self.params = params
        self.opening: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self.opening)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self.opening)

    def answer(self, text: str, show: Callable[[str], None]) -> RequestOutput | None:
        """Ask, and give each new piece of the answer to `show`. A refused question leaves the conversation as it was."""
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt = Prompt(messages=tuple(asked), sampling={}).engine_prompt(self.llm, raw=False)
        last, shown = None, ""
        # Closing the stream aborts the request: an interrupted answer must not keep its blocks.
        with closing(self.llm.stream(prompt, self.params)) as stream:
            for last in stream:
                piece = last.outputs[0].text[len(shown) :]
                shown += piece
                show(piece)
        self.messages = [*asked, {"role": "assistant", "content": shown}]
        return last


def read_lines() -> Iterator[str]:
    """Lines of a person, with a prompt sign, or of a pipe, without."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    import readline  # noqa: F401  # editing and history for input(), wanted only in front of a person

    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return


def talk(conversation: Conversation, lines: Iterator[str], *, verbose: bool) -> None:
    """Answer line by line until /exit or the end. A refused line is reported and the conversation goes on."""
    for line in lines:
        text = line.strip()
        if text == "/exit":
            return
        if text == "/reset":
            conversation.reset()
            print("(a new conversation)", file=sys.stderr)
        elif text.startswith("/"):
            print(f"no command {text.split()[0]}; there are /reset and /exit", file=sys.stderr)
        elif text:
            _take_turn(conversation, text, verbose=verbose)


def _take_turn(conversation: Conversation, text: str, *, verbose: bool) -> None:
    try:
        output = conversation.answer(text, lambda piece: print(piece, end="", flush=True))
    except RequestError as error:
        print(f"error: {error}", file=sys.stderr)
        return
    except KeyboardInterrupt:
        print("\n(stopped; the turn is forgotten)", file=sys.stderr)
        return
    print()
    if verbose and output is not None:
        tokens_in, tokens_out = len(output.prompt_token_ids), len(output.outputs[0].token_ids)
        print(f"[{tokens_in} tokens in, {output.num_cached_tokens} of them cached, {tokens_out} out]", file=sys.stderr)
