"""The offline API: a list of prompts in, a list of outputs in the same order back. Names as in vLLM's."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.engine.interrupt import Uninterrupted
from kvpact.engine.load import load_engine
from kvpact.engine.outputs import RequestOutput
from kvpact.engine.progress import GenerationProgress
from kvpact.engine.request import Prompt
from kvpact.engine.trace import TraceSink
from kvpact.errors import InvalidParameter, RequestError
from kvpact.model.builtin import DEFAULT_MODEL
from kvpact.model.tokenizer import Tokenizer
from kvpact.params import SamplingParams
from kvpact.switches import apply_switches

Message = Mapping[str, str]


class LLM:
    """A model and an engine that runs it.

    model: a built-in name, a folder, a .gguf file, or a hub id. switches: "name=value" each, as `kvpact switches` lists them.
    Further keywords are EngineConfig's fields; an unknown one raises InvalidConfig.
    """

    def __init__(self, model: str = DEFAULT_MODEL, *, switches: Sequence[str] = (), trace: TraceSink | None = None, **options: Any) -> None:
        config = apply_switches(EngineConfig.from_options(options), switches)
        self.engine: Engine = load_engine(model, config, trace=trace)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def reset_prefix_cache(self) -> None:
        """Forget every prefix that could be hit."""
        self.engine.manager.reset_prefix_cache()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Run every prompt to its end; outputs are in the order of the prompts.

        sampling_params: one for all, or one each. use_tqdm: a progress bar on stderr. priority: one each, lower first.
        Raises a RequestError if any prompt can't be answered; then none of them runs on.
        """
        batch = _prompt_list(prompts)
        params = _one_each(sampling_params, len(batch), "sampling_params", SamplingParams())
        priorities = _one_each(priority, len(batch), "priority", 0)
        ids: list[str] = []
        try:
            for prompt, one, rank in zip(batch, params, priorities, strict=True):
                with Uninterrupted():  # a request is in the engine and in the list, or in neither
                    ids.append(self._add(prompt, one, rank, place=f"prompt {len(ids) + 1} of {len(batch)}"))
            finished = self._run(set(ids), len(ids), use_tqdm)
        except BaseException:
            for request_id in ids:
                self.engine.abort(request_id)
            raise
        return [finished[request_id] for request_id in ids]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or a list of them, through the model's chat template."""
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [self.chat_prompt(one, add_generation_prompt=add_generation_prompt) for one in conversations]  # type: ignore[arg-type]  # a mapping comes first in one conversation only
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    def chat_prompt(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> Prompt:
        """The prompt that the chat template makes of `messages`. The template writes its own special tokens: none are added."""
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt)
        return {"prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)}

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Generator[RequestOutput, None, None]:
        """One prompt, with an output after each step that changed it. Closing the iterator aborts the request."""
        request_id: str | None = None
        try:
            with Uninterrupted():
                request_id = self.engine.add(prompt, sampling_params)
            while self.engine.has_unfinished():
                for output in self.engine.step():
                    if output.request_id == request_id:
                        yield output
                        if output.finished:
                            return
        finally:
            if request_id is not None:
                self.engine.abort(request_id)

    def _add(self, prompt: Prompt, params: SamplingParams, priority: int, *, place: str) -> str:
        try:
            return self.engine.add(prompt, params, priority=priority)
        except RequestError as error:
            raise type(error)(f"{place}: {error.message}", hint=error.hint, **error.numbers) from error

    def _run(self, pending: set[str], total: int, show: bool) -> dict[str, RequestOutput]:
        finished: dict[str, RequestOutput] = {}
        with GenerationProgress(total, show=show) as progress:
            while pending:
                for output in self.engine.step():
                    progress.update(output)
                    if output.finished and output.request_id in pending:
                        pending.remove(output.request_id)
                        finished[output.request_id] = output
        return finished


def _prompt_list(prompts: Any) -> list[Prompt]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise InvalidParameter(f"prompts are of type {type(prompts).__name__}", hint="give a prompt, or a list of them")
    return list(prompts)


def _one_each(given: Any, count: int, name: str, default: Any) -> list[Any]:
    if given is None or not isinstance(given, Sequence):
        return [default if given is None else given] * count
    if len(given) != count:
        raise InvalidParameter(f"{name} has {len(given)} entries for {count} prompts", hint=f"give one {name} for all, or one each")
    return list(given)
