"""What an engine computed, by context: the bits of each position's logits and entries, and the answers.

The key of a position is its context, the tokens up to it. So comparing two ledgers by key states the whole promise: the same context
has the same bits, whatever request, batch, chunk or block it was computed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from kvpact.cache.sequence import Sequence
from kvpact.engine.batch import StepBatch
from kvpact.engine.engine import Engine
from kvpact.engine.outputs import RequestOutput
from kvpact.engine.request import Choice
from kvpact.ids import NULL_BLOCK

Context = tuple[int, ...]


@dataclass(frozen=True)
class Answer:
    """One choice's tokens, and (token, log-probability, rank) of each reported one."""

    token_ids: Context
    logprobs: tuple[tuple[tuple[int, float, int], ...], ...]


@dataclass
class Ledger:
    """logits: [vocab] as integers. entries: [layers, 2, K * D] as integers. answers: by prompt number and choice.

    conflicts: contexts that this very run computed twice, with different bits.
    """

    logits: dict[Context, np.ndarray] = field(default_factory=dict)
    entries: dict[Context, np.ndarray] = field(default_factory=dict)
    answers: dict[tuple[int, int], Answer] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)

    def note(self, kind: str, context: Context, bits: np.ndarray) -> None:
        known = getattr(self, kind).setdefault(context, bits)
        if not np.array_equal(known, bits):
            self.conflicts.append(f"computed twice in one run: {_describe(kind, context, bits, known)}")

    def note_answer(self, number: int, output: RequestOutput) -> None:
        for completion in output.outputs:
            logprobs = tuple(
                tuple((token, item.logprob, item.rank) for token, item in position.items()) for position in completion.logprobs
            )
            self.answers[number, completion.index] = Answer(completion.token_ids, logprobs)

    def merge(self, other: Ledger) -> None:
        """Take in what `other` has: afterwards every position of both must have been noted with the same bits."""
        for kind in ("logits", "entries"):
            for context, bits in getattr(other, kind).items():
                self.note(kind, context, bits)
        self.answers |= other.answers


class Recorder:
    """Notes each position of an engine when it is computed, and the entries of a choice again just before its blocks are given back."""

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self._engine, self._ledger = engine, ledger
        self._run, self._finish = engine._runner.run, engine._lifecycle.finish
        engine._runner.run = self._recorded_run  # type: ignore[method-assign]
        engine._lifecycle.finish = self._recorded_finish  # type: ignore[method-assign]

    @torch.inference_mode()
    def _recorded_run(self, batch: StepBatch) -> np.ndarray:
        wanted = self._run(batch).copy()  # the rows lie in the decoder's workspace, which the next line overwrites
        rows = self._engine._runner._decoder.logits(torch.arange(len(batch.token_ids))).numpy().copy()
        for row, index in enumerate(batch.row_indices):
            if not np.array_equal(_bits(wanted[row]), _bits(rows[index])):
                self._ledger.conflicts.append(f"row {index} of a step, asked for with few others and with all, has different bits")
        starts = batch.arrays.query_start_loc
        for scheduled, first in zip(batch.plan, starts, strict=False):
            sequence = scheduled.choice.sequence
            tokens = tuple(sequence.tokens)
            for position in range(scheduled.start, scheduled.stop):
                self._ledger.note("logits", tokens[: position + 1], _bits(rows[first + position - scheduled.start]))
            self._note_entries(sequence, tokens, scheduled.start, scheduled.stop)
        return wanted

    def _recorded_finish(self, choice: Choice, *args: object, **options: object) -> None:
        sequence = choice.sequence
        self._note_entries(sequence, tuple(sequence.tokens), 0, sequence.num_computed_tokens)
        self._finish(choice, *args, **options)  # type: ignore[arg-type]

    def _note_entries(self, sequence: Sequence, tokens: Context, start: int, stop: int) -> None:
        if stop > start:
            bits = self._read(sequence, start, stop)
            for position in range(start, stop):
                self._ledger.note("entries", tokens[: position + 1], bits[position - start])

    def _read(self, sequence: Sequence, start: int, stop: int) -> np.ndarray:
        """[positions, layers, 2, K * D], through the logical views and the block tables."""
        spec, storage = self._engine.spec, self._engine.storage
        positions = torch.arange(start, stop)
        layers: dict[int, torch.Tensor] = {}
        for group in spec.groups:
            table = torch.tensor(sequence.block_table(group.name))
            blocks = table[positions // spec.block_size]
            assert not bool((blocks == NULL_BLOCK).any())
            for index in group.layers:
                layer = storage.layer(index)
                both = [part[blocks, positions % spec.block_size].flatten(1) for part in (layer.keys, layer.values)]
                layers[index] = torch.stack(both, 1)
        stacked = torch.stack([layers[index] for index in sorted(layers)], 1)
        return stacked.view(torch.int32 if stacked.dtype == torch.float32 else torch.int16).numpy()


def first_difference(ledger: Ledger, reference: Ledger) -> str | None:
    """The first entry, by layer and position, else the first row of logits, else the first answer that differs in any bit; None if none."""
    if ledger.conflicts:
        return ledger.conflicts[0]
    told = [*_differences("entries", ledger, reference), *_differences("logits", ledger, reference)]
    if told:
        return f"{told[0]}; {len(told)} positions differ"
    for key, ours in sorted(ledger.answers.items()):
        theirs = reference.answers.get(key)
        if theirs is None or ours.token_ids != theirs.token_ids:
            return f"prompt {key[0]}, choice {key[1]}: sampled {ours.token_ids}, expected {theirs and theirs.token_ids}"
        if ours.logprobs != theirs.logprobs:
            return f"prompt {key[0]}, choice {key[1]}: log-probabilities differ"
    return None


def num_compared(ledger: Ledger, reference: Ledger) -> int:
    """How many positions' logits both ledgers have."""
    return len(ledger.logits.keys() & reference.logits.keys())


def _differences(kind: str, ledger: Ledger, reference: Ledger) -> list[str]:
    found: list[tuple[int, int, str]] = []
    for context, bits in getattr(ledger, kind).items():
        known = getattr(reference, kind).get(context)
        if known is not None and not np.array_equal(bits, known):
            layer = int(np.argwhere(bits != known)[0][0]) if kind == "entries" else 0
            found.append((layer, len(context), _describe(kind, context, bits, known)))
    return [text for _, _, text in sorted(found)]


def _describe(kind: str, context: Context, bits: np.ndarray, known: np.ndarray) -> str:
    different = np.argwhere(bits != known)
    place = tuple(int(i) for i in different[0])
    what = f"layer {place[0]}, {('keys', 'values')[place[1]]}[{place[2]}]" if kind == "entries" else f"logit of token {place[0]}"
    width = 8 if bits.dtype.itemsize == 4 else 4
    hexed = [f"{int(array[place]) & (1 << 4 * width) - 1:0{width}x}" for array in (bits, known)]
    return (
        f"{kind} of position {len(context) - 1}, context {context[:4]}...{context[-2:]}: {what} is {hexed[0]}, expected {hexed[1]}; "
        f"{len(different)} of {bits.size} numbers differ"
    )


def _bits(row: np.ndarray) -> np.ndarray:
    return row.view(np.int32)
