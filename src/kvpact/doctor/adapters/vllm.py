"""vLLM in this process: whole prompts go in, the whole vocabulary's log-probabilities come out."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvpact.doctor.adapters.resent import ResentSession, Shown
from kvpact.doctor.errors import TargetUnusable
from kvpact.doctor.target import Capability, Row, Session, Setting, Target

_OFFERED = frozenset(
    {
        Capability.ALL_ROWS,
        Capability.FULL_ROWS,
        Capability.BATCH,
        Capability.RAGGED,
        Capability.REUSE,
        Capability.SALT,
        Capability.USAGE,
        Capability.GLASS,
    }
)
#: Blocks that a cache of this size has are enough for every rule, and leave room for a second engine.
_CACHE_BYTES = 1 << 29
#: Vocabularies up to here are shown whole: each entry is an object of Python's.
_WHOLE, _LIKELIEST = 2048, 100


class Vllm(Target):
    """A context's new rows but the last are read in a pass of their own: with them vLLM reads no entries of earlier requests.

    folder: a checkpoint. options: for vllm.LLM, beside those that the examination needs.
    """

    level = 1

    def __init__(self, folder: str, *, dtype: str | None = None, name: str | None = None, **options: Any) -> None:
        self.name = name or f"vllm:{folder}"
        self._dtype, self._options = dtype or "auto", options
        self._llm = _loaded(folder, self._dtype, options)
        config = self._llm.llm_engine.vllm_config
        self.vocab_size = int(config.model_config.get_vocab_size())
        self._top = -1 if self.vocab_size <= _WHOLE else _LIKELIEST
        self.capabilities = _OFFERED if self._top == -1 else _OFFERED - {Capability.FULL_ROWS}
        if not _core_apart():
            self.capabilities -= {Capability.GLASS}
        self.max_len = int(config.model_config.max_model_len) - 1
        self.window = config.model_config.get_sliding_window()
        self.block_size = int(config.cache_config.block_size)
        self._architecture = str(config.model_config.hf_text_config.model_type)
        self._stored = str(config.model_config.dtype).removeprefix("torch.")
        self._run, self._program = secrets.token_hex(8), 0
        self._folder: str | None = None

    def describe(self) -> Mapping[str, str]:
        import vllm

        return {
            "engine": f"vllm {vllm.__version__}",
            "model": self._architecture,
            "dtype": self._stored,
            "block size": str(self.block_size),
        }

    def begin(self) -> None:
        self._program += 1

    def open(self, setting: Setting) -> Session:
        def send(contexts: Mapping[str, tuple[int, ...]], new: Mapping[str, int]) -> Mapping[str, Shown]:
            return self._answers(contexts, new, setting)

        return ResentSession(send)

    def _answers(self, contexts: Mapping[str, tuple[int, ...]], new: Mapping[str, int], setting: Setting) -> Mapping[str, Shown]:
        shared = f"{self._run}-{self._program}-{setting.salt or ''}"
        last = self._generate(list(contexts.values()), shared if setting.reuse else None)
        several = [name for name in contexts if new[name] > 1]
        whole = dict(zip(several, self._generate([contexts[name] for name in several], None, prompt=True), strict=True))
        shown = {}
        for name, output in zip(contexts, last, strict=True):
            rows = [self._row(output.outputs[0].logprobs[0])]
            if name in whole:
                # Entry i says how likely token i was, so it is the row of the token before.
                told = whole[name].prompt_logprobs
                rows = [*(self._row(told[place]) for place in range(len(told) - new[name] + 1, len(told))), *rows]
            cached = int(output.num_cached_tokens or 0)
            shown[name] = Shown(rows=rows, cached=partial(int, cached))
        return shown

    def _generate(self, contexts: Sequence[Sequence[int]], salt: str | None, *, prompt: bool = False) -> Sequence[Any]:
        """In one call. salt: None for one that nobody has."""
        from vllm import SamplingParams

        if not contexts:
            return ()
        prompts = [{"prompt_token_ids": list(tokens), "cache_salt": salt or secrets.token_hex(16)} for tokens in contexts]
        asked = SamplingParams(
            temperature=1.0,
            max_tokens=1,
            logprobs=self._top,
            prompt_logprobs=self._top if prompt else None,
            detokenize=False,
            ignore_eos=True,
        )
        outputs: Sequence[Any] = self._llm.generate(prompts, asked, use_tqdm=False)
        return outputs

    def _row(self, told: Mapping[int, Any]) -> Row:
        row = np.full(self.vocab_size, np.nan, np.float32)
        for token, entry in told.items():
            # The drawn token, or the prompt's own, comes on top of the likeliest ones.
            if self._top == -1 or entry.rank <= self._top:
                row[token] = entry.logprob
        return row

    def glass(self) -> Target:
        """A second engine with the same options, in the model's own architecture where its weights are known, else in Llama's."""
        from kvpact.doctor.glass.export import glass_folder

        folder = tempfile.mkdtemp(prefix="kvpact-glass-")
        try:
            _, form = glass_folder(self._architecture, Path(folder), dtype=self._stored)
            twin = Vllm(folder, dtype=self._stored, name=f"{self.name} (glass)", **self._options)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        twin._folder = folder
        twin.form = form
        return twin

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _core_apart() -> bool:
    """Whether engines compute in processes of their own. In one process, closing the glass twin would take its groups from the first."""
    from vllm import envs

    return bool(envs.VLLM_ENABLE_V1_MULTIPROCESSING)


def _loaded(folder: str, dtype: str, options: Mapping[str, Any]) -> Any:
    """Raises TargetUnusable."""
    try:
        from vllm import LLM
    except ImportError as error:
        raise TargetUnusable("vLLM is not installed", hint="run the doctor in an environment that has it") from error
    asked = {"max_logprobs": -1, "enable_prefix_caching": True, "skip_tokenizer_init": True, "kv_cache_memory_bytes": _CACHE_BYTES}
    try:
        return LLM(model=folder, dtype=dtype, **{**asked, **options})
    except (OSError, ValueError, RuntimeError) as error:
        raise TargetUnusable(f"vLLM can't load {folder}: {error}", hint="give a checkpoint folder with config.json and weights") from error


def load(folder: str, *, dtype: str | None = None) -> Vllm:
    """Eager, for the examination's shapes vary and each would be compiled."""
    return Vllm(folder, dtype=dtype, enforce_eager=True)
