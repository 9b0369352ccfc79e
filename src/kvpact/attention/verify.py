"""Hold a backend to what it declares, before it may touch a request: small paged cases against the float64 reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kvpact.attention.lowering import MODES
from kvpact.attention.metadata import build_inputs
from kvpact.cache.spec import GroupKind, LayerGroup
from kvpact.errors import BackendUntrue
from kvpact.ids import PAD_SLOT
from kvpact.ops.base import Operators
from kvpact.ops.layout import layer_cache
from kvpact.ops.reference import ReferenceOperators
from kvpact.ops.step import StepArrays
from kvpact.visibility import Part, Visibility

#: fp32 against float64 on these sizes differs by 1e-7 or so; one key of a dozen too many by 1e-2 or more, a rounded query by 1e-3.
TOLERANCE = 1e-5
BLOCK_SIZE, NUM_BLOCKS, NUM_KV_HEADS, HEAD_DIM = 4, 24, 2, 8
#: (seq_len, rows of this step): decode and prefill, whole and chunked, on and off the edges of blocks and windows.
REQUESTS = ((1, 1), (5, 5), (9, 1), (8, 1), (13, 6), (12, 4))


@dataclass(frozen=True, kw_only=True)
class Case:
    """subject: what a wrong answer convicts. group_size: query heads for each key head. dtype: of the entries."""

    subject: str
    visibility: Visibility
    group_size: int = 2
    dtype: torch.dtype = torch.float32


#: From the plainest on, so that the first case to fail names the fault: a later one leans on what the earlier ones showed.
CASES = (
    Case(subject="lengths and block tables", visibility=Visibility(causal=False), group_size=1),
    Case(subject="grouped heads", visibility=Visibility(causal=False), group_size=3),
    Case(subject="entries narrower than fp32", visibility=Visibility(causal=False), dtype=torch.bfloat16),
    Case(subject=Part.CAUSAL.value, visibility=Visibility()),
    Case(subject=Part.WINDOW.value, visibility=Visibility(window=3)),
    Case(subject=Part.WINDOW.value, visibility=Visibility(causal=False, window=4)),
    Case(subject=Part.SINKS.value, visibility=Visibility(window=3, sinks=2)),
    Case(subject=Part.PREFIX.value, visibility=Visibility(prefix=7)),
    Case(subject=Part.PREFIX.value, visibility=Visibility(window=2, sinks=1, prefix=4)),
)


@torch.inference_mode()
def verify(backend: Operators) -> None:
    """Raise BackendUntrue, naming the part and the error, unless `backend` sees exactly what it is told, in both lowerings.

    Its declared parts are taken out of the mask, so it must apply them; all others are in the mask, so it must
    not add to it. Unused slots hold large entries: one key too many can't hide.
    """
    generator = torch.Generator().manual_seed(20)
    reference = ReferenceOperators()
    for case in CASES:
        step = _step(np.random.default_rng(20))
        group = _group(case.visibility)
        num_tokens = int(step.query_start_loc[-1])
        q = torch.randn(num_tokens, NUM_KV_HEADS * case.group_size, HEAD_DIM, generator=generator)
        stale = 5 * torch.randn(2, NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, generator=generator).to(case.dtype)
        entries = torch.randn(2, NUM_BLOCKS * BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, generator=generator)
        expected = _run(reference, step, group, (q, stale, entries), MODES[0])
        for mode in MODES:
            actual = _run(backend, step, group, (q, stale, entries), mode)
            error = _relative_error(actual, expected)
            if not error <= TOLERANCE:
                raise _untrue(backend, case.subject, mode, error)


def _relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    return float((actual.double() - expected).norm() / expected.norm())


def _untrue(backend: Operators, subject: str, mode: str, error: float) -> BackendUntrue:
    declared = subject in {part.value for part in backend.applies}
    claim = f"declares {subject} and does not apply it as the rule says" if declared else f"is wrong about {subject}"
    return BackendUntrue(
        f"operators {backend.name!r}: the backend {claim}; relative error {error:.3g} against the reference, "
        f"at most {TOLERANCE:g} is rounding (mask_lowering {mode})",
        hint="correct the backend or what it declares in `applies`; until then use --switch ops=torch",
        backend=backend.name,
        part=subject,
        relative_error=error,
    )


def _group(visibility: Visibility) -> LayerGroup:
    return LayerGroup(name="full", kind=GroupKind.FULL, layers=(0,), num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, visibility=visibility)


def _step(rng: np.random.Generator) -> StepArrays:
    """REQUESTS over blocks in random order. The last one's blocks are consecutive, which a backend may treat apart, and end the pool: a
    negative slot that wraps around lands in an entry that is read."""
    lengths = np.array([length for length, _ in REQUESTS])
    rows = np.array([num_rows for _, num_rows in REQUESTS])
    table = np.zeros((len(REQUESTS), -(-int(lengths.max()) // BLOCK_SIZE) + 1), dtype=np.int64)
    last_blocks = -(-int(lengths[-1]) // BLOCK_SIZE)
    free = rng.permutation(np.arange(1, NUM_BLOCKS - last_blocks)).tolist()
    for request, length in enumerate(lengths[:-1]):
        for column in range(-(-int(length) // BLOCK_SIZE)):
            table[request, column] = free.pop()
    table[-1, :last_blocks] = np.arange(NUM_BLOCKS - last_blocks, NUM_BLOCKS)
    positions = np.concatenate([np.arange(length - num_rows, length) for length, num_rows in REQUESTS])
    owners = np.repeat(np.arange(len(REQUESTS)), rows)
    slots = table[owners, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    return StepArrays(
        query_start_loc=np.concatenate([[0], np.cumsum(rows)]),
        seq_lens=lengths,
        positions=positions,
        slot_mapping={"full": slots},
        block_table={"full": table},
        block_size=BLOCK_SIZE,
    )


def _run(
    ops: Operators, step: StepArrays, group: LayerGroup, tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], mode: str
) -> torch.Tensor:
    """Write each request's past, then this step's rows, through the backend's own `write`; then attend."""
    q, stale, entries = tensors
    cache = layer_cache(stale.new_empty(2, NUM_BLOCKS, stale[0, 0].numel()), ops.layout, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    cache.keys.copy_(stale[0])
    cache.values.copy_(stale[1])
    inputs = build_inputs(group, step, applies=ops.applies, mode=mode)
    past = [
        int(step.block_table["full"][request, position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE
        for request, (length, num_rows) in enumerate(REQUESTS)
        for position in range(length - num_rows)
    ]
    for slots in (torch.tensor(past), inputs.slot_mapping):
        ops.write(cache, slots, entries[0, slots], entries[1, slots])
    ops.write(cache, torch.tensor([PAD_SLOT]), entries[0, :1], entries[1, :1])
    return ops.attention(q, cache, inputs, HEAD_DIM**-0.5)
