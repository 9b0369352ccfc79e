"""Run prompts through an engine and compare what was computed, row of log-probabilities by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvpact.engine.engine import Engine
from kvpact.engine.outputs import RequestOutput
from kvpact.params import SamplingParams
from tiny_models import VOCAB

#: Relative error of the norm that rounding may cause on operators that do not promise bits.
BOUND = 1e-4


def prompt(length: int, salt: int = 0) -> list[int]:
    """A fixed prompt without an end-of-text token."""
    return [(7 * i + 13 * salt + i * i) % (VOCAB - 64) for i in range(length)]


def whole_rows(max_tokens: int = 12, **options: object) -> SamplingParams:
    """Greedy sampling that reports every token's log-probability at every output position."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, logprobs=VOCAB, ignore_eos=True, **options)


@dataclass(frozen=True)
class Rows:
    """One choice: its tokens and its rows [positions, vocab]."""

    token_ids: tuple[int, ...]
    rows: np.ndarray


def run(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]) -> list[RequestOutput]:
    """Run prompts together to their end, in the order given."""
    each = params if isinstance(params, Sequence) else [params] * len(prompts)
    ids = [engine.add({"prompt_token_ids": list(one)}, p) for one, p in zip(prompts, each, strict=True)]
    done = finish(engine)
    return [done[request_id] for request_id in ids]


def finish(engine: Engine) -> dict[str, RequestOutput]:
    """Step until nothing is left; the laws hold after every step and nothing is held at the end."""
    done = {}
    while engine.has_unfinished():
        done |= {output.request_id: output for output in engine.step() if output.finished}
        engine.manager.check()
    assert engine.manager.usage().held == 0
    return done


def rows_of(output: RequestOutput, choice: int = 0) -> Rows:
    completion = output.outputs[choice]
    rows = np.array([[position[token].logprob for token in range(VOCAB)] for position in completion.logprobs])
    return Rows(completion.token_ids, rows)


def error(left: Rows, right: Rows) -> float:
    """Largest relative error of a row's norm over the common positions; infinite where the tokens differ."""
    if left.token_ids != right.token_ids:
        return float("inf")
    return float(max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(left.rows, right.rows, strict=True)))
