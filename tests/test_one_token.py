"""Walks a token along docs/one-token.md and holds every framed line of it to the running engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kvpact.attention.metadata import build_inputs
from kvpact.config import EngineConfig
from kvpact.engine.batch import StepBatch
from kvpact.engine.engine import Engine
from kvpact.engine.load import load_engine
from kvpact.params import SamplingParams
from tiny_models import save_tiny_model

DOC = Path(__file__).parents[1] / "docs" / "one-token.md"
PROMPT = [10, 11, 12, 13, 14, 15]


def show(values: object) -> str:
    return " ".join(str(int(value)) for value in values) or "none"


class Walk:
    """An engine whose runner's batches are kept, and the facts that it shows."""

    def __init__(self, folder: Path) -> None:
        self.model = save_tiny_model(folder, "llama", num_hidden_layers=2)
        self.engine: Engine = load_engine(str(folder), EngineConfig(block_size=4, kv_cache_memory=1 << 20))
        self.batches: list[StepBatch] = []
        run = self.engine._runner.run
        self.engine._runner.run = lambda batch: self.batches.append(batch) or run(batch)  # type: ignore[method-assign]
        self.facts: list[str] = []

    def sequence(self) -> object:
        return self.engine._requests["1"].choices[0].sequence

    def blocks(self) -> str:
        return show(self.sequence().block_table("full"))

    def findable(self) -> str:
        owned = {3, 4}
        found = {block for _, block in self.engine.manager.groups[0].pool.index.findable()}
        return show(sorted(found & owned))

    def tell_step(self, step: int) -> None:
        batch = self.batches[step]
        arrays, (first, last) = batch.arrays, batch.arrays.query_start_loc[1:3]
        if step == 0:
            self.facts.append(f"step 0: query_start_loc {show(arrays.query_start_loc)}")
        self.facts.append(
            f"step {step}: positions {show(arrays.positions[first:last])}, slots {show(arrays.slot_mapping['full'][first:last])}, "
            f"seq_len {arrays.seq_lens[1]}"
        )
        group = self.engine.spec.groups[0]
        span = build_inputs(group, arrays, applies=frozenset(), mode="spans").spans[1]
        counts = span.mask.sum(-1) if span.mask is not None else [span.stop - span.start]
        self.facts.append(f"step {step}: keys {span.start} to {span.stop - 1}, visible per row {show(counts)}")

    def tell_key(self, layer: int) -> None:
        """What transformers computes as the rotated key of position 5 is what lies in that slot."""
        with torch.inference_mode():
            cache = self.model(torch.tensor([PROMPT]), use_cache=True).past_key_values
        expected = cache.layers[layer].keys[0, :, 5]
        stored = self.engine.storage.layer(layer).keys[4, 1]
        torch.testing.assert_close(stored, expected, rtol=1e-4, atol=1e-5)
        self.facts.append(f"layer {layer}: key of position 5 lies in block 4 at offset 1, rotated by 5")


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    walk = Walk(tmp_path_factory.mktemp("one_token"))
    engine = walk.engine
    biased = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, logit_bias={42: 1000.0})
    engine.add({"prompt_token_ids": [1, 2, 3, 4, 5]}, biased)
    engine.add({"prompt_token_ids": PROMPT}, biased)
    seq, request = walk.sequence(), engine._requests["1"]
    walk.facts.append(
        f"admitted: tokens {show(seq.tokens)}, computed {seq.num_computed_tokens}, blocks {walk.blocks()}, "
        f"at most {request.max_total_tokens} tokens in all"
    )
    plan = engine._scheduler.schedule()
    walk.facts.append(
        f"reserved: positions {plan[1].start} to {plan[1].stop - 1}, blocks {walk.blocks()}, computed still {seq.num_computed_tokens}"
    )
    engine._scheduler.rollback(plan, written=False)
    engine.step()
    walk.tell_step(0)
    walk.tell_key(0)
    walk.tell_key(1)
    walk.facts.append(f"step 0: logit rows {show(walk.batches[0].row_indices)}, sampled {seq.tokens[6]} at output position 0")
    walk.facts.append(f"committed: computed {seq.num_computed_tokens}, findable blocks {walk.findable()}, tokens {show(seq.tokens)}")
    output = next(output for output in engine.step() if output.request_id == "1")
    walk.tell_step(1)
    walk.facts.append(
        f"finished: {output.outputs[0].finish_reason}, output {show(output.outputs[0].token_ids)}, "
        f"held blocks {engine.manager.usage().held}, findable blocks {walk.findable()}"
    )
    return walk.facts


def framed(text: str) -> list[str]:
    return [line for block in re.findall(r"```text\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def test_every_framed_line_of_the_document_is_what_the_engine_shows(facts: list[str]) -> None:
    assert framed(DOC.read_text()) == facts


def test_a_document_with_one_wrong_number_would_be_caught(facts: list[str]) -> None:
    assert framed(DOC.read_text().replace("slots 18", "slots 19")) != facts
