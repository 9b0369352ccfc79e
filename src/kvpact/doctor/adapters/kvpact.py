"""kvpact's own engine, driven by given tokens: its scheduler plans, its manager reserves and commits, its runner computes.

Only sampling is left out, for the doctor says what comes next. The engine's injection points stay in force.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kvpact import __version__
from kvpact.doctor.adapters.kvpact_session import KvpactSession
from kvpact.doctor.errors import Stalled
from kvpact.doctor.target import Answer, Capability, Row, Session, Setting, Target
from kvpact.engine.engine import Engine
from kvpact.errors import KvpactError
from kvpact.inject import InjectionPoints
from kvpact.params import SamplingParams

_CAPABILITIES = frozenset(
    {
        Capability.ALL_ROWS,
        Capability.FULL_ROWS,
        Capability.CHUNK,
        Capability.BATCH,
        Capability.RAGGED,
        Capability.CAPACITY,
        Capability.TRUNCATE,
        Capability.FORK,
        Capability.ABORT,
        Capability.SAVE,
        Capability.ENTRIES,
        Capability.STORAGE,
        Capability.TABLES,
        Capability.STEPS,
        Capability.GENERATE,
        Capability.GLASS,
    }
)
_OF_REUSE = frozenset({Capability.REUSE, Capability.SALT, Capability.USAGE, Capability.COLLISIONS})
#: Tokens that the pool holds unless the setting says otherwise.
_POOL_TOKENS = 8192
#: Steps without a finished request, for each token that is to be computed, after which an engine has stalled.
_PATIENCE = 8

#: Puts a fault in at an engine's injection points.
Plant = Callable[[InjectionPoints, Engine], None]


class Kvpact(Target):
    """One set of weights; an engine for each size of the pool. plant: brings a fault into each engine that is made."""

    level = 2

    def __init__(self, decoder: Any, tokenizer: Any, ops: Any, config: Any, *, name: str = "kvpact", plant: Plant | None = None) -> None:
        self.name = name
        self.config = config
        self._parts = (decoder, tokenizer, ops)
        self._plant = plant
        self.again: Callable[[str], Target] | None = None  #: the same at another precision, where it was loaded from files
        self._engines: dict[tuple[int | None, bool], Engine] = {}
        self.capabilities = _CAPABILITIES | (_OF_REUSE if config.enable_prefix_caching else frozenset())
        self.vocab_size = int(decoder.config.vocab_size)
        self.max_len = int(decoder.max_model_len)
        self.block_size = int(config.block_size)
        self.num_layers = int(decoder.config.num_layers)
        groups = decoder.layer_groups()
        windows = {group.visibility.window for group in groups} - {None}
        self.window = min(windows) if windows else None
        self.twin_alike = len(groups) == 1 and not windows  # the glass checkpoint has one group, and other windows

    def begin(self) -> None:
        """Forget every prefix, so that equal programs show equal rows; the sessions of one program find what the others left."""
        for engine in self._engines.values():
            engine.manager.reset_prefix_cache()

    def open(self, setting: Setting) -> Session:
        return KvpactSession(self, self.engine(setting), setting)

    def clock(self) -> float:
        return time.process_time()

    def engine(self, setting: Setting) -> Engine:
        """The engine that serves sessions of this setting."""
        key = (setting.capacity, setting.collide)
        if key not in self._engines:
            self._engines[key] = self._made(setting)
        return self._engines[key]

    def glass(self) -> Kvpact:
        """The same operators and switches, the same fault where there is one, over the glass checkpoint in the model's architecture."""
        from kvpact.doctor.glass.export import glass_folder
        from kvpact.model.loader import load_decoder
        from kvpact.model.tokenizer import Tokenizer

        decoder, _, ops = self._parts
        dtype = str(decoder.dtype).removeprefix("torch.")
        kinds = {"Qwen2ForCausalLM": "qwen2", "GPT2LMHeadModel": "gpt2"}
        kind = "mistral" if self.window else kinds.get(decoder.config.architecture.name, "llama")
        stored = self.config.kv_cache_dtype
        with TemporaryDirectory() as folder:
            path, form = glass_folder(kind, Path(folder), dtype=dtype if stored == "auto" else stored)
            glass = load_decoder(path, ops=ops, dtype=dtype, max_model_len=None)
            tokenizer = Tokenizer.load(path)
        config = replace(self.config, max_model_len=None)
        twin = type(self)(glass, tokenizer, ops, config, name=f"{self.name} (glass)", plant=self._plant)
        twin.form = form
        return twin

    def at_precision(self, dtype: str) -> Target | None:
        if self.again is None or str(self._parts[0].dtype) == f"torch.{dtype}":
            return None
        return self.again(dtype)

    def _made(self, setting: Setting) -> Engine:
        decoder, tokenizer, ops = self._parts
        config = self.config
        if setting.capacity is not None or config.kv_cache_memory is None:
            tokens = setting.capacity if setting.capacity is not None else _POOL_TOKENS
            num_blocks = -(-tokens // config.block_size) + 1
            config = replace(config, kv_cache_memory=num_blocks * self._block_bytes(), peak_concurrency=None)
        engine = Engine(decoder, tokenizer, ops, config)
        if setting.collide:
            for cache in engine.manager.groups:
                # A secret that is always the same: a program that shows a collision shows it on every engine.
                cache.pool.index._digest, cache.pool.index._secret = _four_bits, b""
        if self._plant is not None:
            self._plant(engine.inject, engine)
        return engine

    def _block_bytes(self) -> int:
        from kvpact.model.loader import DTYPES

        decoder = self._parts[0]
        dtype = decoder.dtype if self.config.kv_cache_dtype == "auto" else DTYPES[self.config.kv_cache_dtype]
        return int(sum(group.token_bytes(dtype.itemsize) for group in decoder.layer_groups()) * self.config.block_size)

    def identity(self, healthy: Any) -> Any:
        """Whose entries a context's are. A point where faults are put in, for the engine has none there."""
        return healthy

    def describe(self) -> Mapping[str, str]:
        import torch

        from kvpact.switches import SWITCHES

        told = {"engine": f"kvpact {__version__}", "model": self.name.removeprefix("kvpact:"), "torch": torch.__version__}
        told |= {"operators": self._parts[2].name, "dtype": str(self._parts[0].dtype).removeprefix("torch.")}
        shown = {switch.name: switch.show(getattr(self.config, switch.field)) for switch in SWITCHES.values()}
        changed = [f"{name}={value}" for name, value in shown.items() if value != SWITCHES[name].default()]
        return {**told, "switches": ", ".join(changed) or "as they come"}

    def generate(self, prompts: Sequence[Sequence[int]], new_tokens: int, setting: Setting) -> Sequence[Answer]:
        """Through the engine's public way: add, then step until all have ended."""
        engine = self.engine(setting)
        shown = min(20, self.vocab_size)
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=shown)
        ids, answers = dict[str, int](), dict[int, Answer]()
        for index, prompt in enumerate(prompts):
            given: dict[str, object] = {"prompt_token_ids": list(prompt)}
            try:
                ids[engine.add(given | ({} if setting.salt is None else {"cache_salt": setting.salt}), params)] = index
            except KvpactError as error:
                answers[index] = Answer(tokens=(), rows=(), refused=error.message)
        patience = _PATIENCE * (sum(len(prompt) + new_tokens for prompt in prompts) + 8)
        try:
            self._drive(engine, ids, answers, patience)
        finally:
            for request_id in ids:
                engine.abort(request_id)
        return [answers[index] for index in range(len(prompts))]

    def _drive(self, engine: Engine, ids: Mapping[str, int], answers: dict[int, Answer], patience: int) -> None:
        for _ in range(patience):
            if not engine.has_unfinished():
                return
            for output in engine.step():
                if output.finished:
                    answers[ids[output.request_id]] = self._answer(output)
        raise Stalled(
            f"{len(ids) - len(answers)} of {len(ids)} requests are unfinished after {patience} steps",
            hint="a request waits for room that nobody gives back",
        )

    def _answer(self, output: Any) -> Answer:
        completion = output.outputs[0]
        if completion.finish_reason == "error":
            return Answer(tokens=(), rows=(), refused=str(completion.stop_reason))
        return Answer(tokens=tuple(completion.token_ids), rows=tuple(self._row(position) for position in completion.logprobs))

    def _row(self, position: Mapping[int, Any]) -> Row:
        row = np.full(self.vocab_size, np.nan, dtype=np.float32)
        for token, item in position.items():
            row[token] = item.logprob
        return row


def _four_bits(data: bytes) -> bytes:
    """16 keys for all prefixes: they collide at once. One more byte keeps the roots of identities apart."""
    return bytes([hashlib.sha256(data).digest()[0] & 15])
