"""A model in OpenVINO as a callable for `kvpact doctor openvino_step:Model`: the stateful graph, with its entries inside a request.

OpenVINO GenAI gives out no scores, so the graph that it makes of a GGUF file is run by OpenVINO itself. That shows the graph and the
plugin's stateful cache, not GenAI's scheduler and prefix cache. The environment variable OPENVINO_GGUF names the GGUF file, of f16 tensors.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from numpy.typing import NDArray

_F32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}


class State:
    """A request with the entries of a batch. mask: [rows, columns], 0 where a row is padded. beam: whose entries a row goes on from."""

    def __init__(self, compiled: Any, rows: int) -> None:
        self.compiled = compiled
        self.request = compiled.create_infer_request()
        self.mask = np.zeros((rows, 0), np.int64)
        self.beam = np.arange(rows, dtype=np.int32)

    def set_entries(self, cut: int | None, source: State) -> None:
        """The source's, of its first `cut` columns, or all."""
        theirs = {one.name: one for one in source.request.query_state()}
        for mine in self.request.query_state():
            entries = theirs[mine.name].state.data[:, :, :cut]
            mine.state = ov.Tensor(np.ascontiguousarray(entries))
        self.mask, self.beam = source.mask[:, :cut].copy(), source.beam.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        copied = State(self.compiled, len(self.mask))
        copied.set_entries(None, self)
        return copied


class Model:
    """`step`, and what it can do beside it. Short rows are padded on the left."""

    copyable = True
    max_len = 512

    def __init__(self) -> None:
        self._compiled = _compiled(Path(os.environ["OPENVINO_GGUF"]))

    def step(self, token_ids: list[list[int]], state: State | None, pad_id: int = 0) -> tuple[list[NDArray[np.float32]], State]:
        state = state or State(self._compiled, len(token_ids))
        longest = max(map(len, token_ids))
        ids = np.full((len(token_ids), longest), pad_id, np.int64)
        new = np.zeros_like(ids)
        for row, tokens in enumerate(token_ids):
            ids[row, longest - len(tokens) :] = tokens
            new[row, longest - len(tokens) :] = 1
        state.mask = np.concatenate([state.mask, new], axis=1)
        positions = np.maximum(state.mask.cumsum(axis=1) - 1, 0)[:, -longest:]
        given = {"input_ids": ids, "attention_mask": state.mask, "position_ids": positions, "beam_idx": state.beam}
        scores = state.request.infer(given)["logits"]
        state.beam = np.arange(len(token_ids), dtype=np.int32)
        return [scores[row, longest - len(tokens) :].copy() for row, tokens in enumerate(token_ids)], state

    def truncate(self, state: State, length: int) -> State:
        """Of a batch of one, which has no padding."""
        cut = State(self._compiled, len(state.mask))
        cut.set_entries(length, state)
        return cut

    def reorder(self, state: State, rows: list[int]) -> State:
        state.mask, state.beam = state.mask[rows], state.beam[rows]
        return state


def _compiled(gguf: Path) -> Any:
    """GenAI writes the graph beside the file that it reads."""
    with tempfile.TemporaryDirectory(prefix="kvpact-openvino-") as folder:
        link = Path(folder) / gguf.name
        link.symlink_to(gguf.resolve())
        genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        return ov.Core().compile_model(Path(folder) / "openvino_model.xml", "CPU", _F32)
