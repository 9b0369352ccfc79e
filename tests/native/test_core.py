"""What Python hands the compiled core is checked with numbers before anything is written; what it gets back stays readable."""

import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

native = pytest.importorskip("kvpact._native", reason="the compiled core is not built here")

HIDDEN, INNER, HEADS, KV_HEADS, DIM, VOCAB, BLOCK, BLOCKS = 16, 24, 2, 1, 8, 20, 8, 4


def ints(*values):
    return np.array(values, dtype=np.int64)


def make_core(**changed):
    sizes = {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": DIM,
        "layer_norm": False,
        "norm_eps": 1e-5,
        "activation": 0,
        "gated": True,
        "scale": 0.3,
        "cos": None,
        "sin": None,
        "num_threads": 2,
    }
    return native.Core(**(sizes | changed))


def matrices(core):
    torch.manual_seed(0)
    shapes = {"qkv": (32, HIDDEN), "out": (HIDDEN, 16), "up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)}
    return {name: core.pack(torch.randn(shape), None) for name, shape in shapes.items()}


def add_layer(core, packed):
    ones = torch.ones(HIDDEN)
    norms = {"attention_weight": ones, "attention_bias": None, "mlp_weight": ones, "mlp_bias": None, "q_norm": None, "k_norm": None}
    core.add_layer(**norms, **packed)


@pytest.fixture
def core():
    made = make_core()
    add_layer(made, matrices(made))
    made.set_tables(torch.randn(VOCAB, HIDDEN), None, made.pack(torch.randn(VOCAB, HIDDEN), None), torch.ones(HIDDEN), None)
    return made


def entries(block_size=BLOCK, head_dim=DIM, blocks=BLOCKS):
    return native.entries(torch.zeros(2, blocks, block_size * KV_HEADS * head_dim), block_size, KV_HEADS, head_dim)


def begin(core, **changed):
    """Three tokens of one request in block 1, but for what is changed."""
    step = {"ids": [1, 2, 3], "start": [0, 3], "lens": [3], "slots": [8, 9, 10], "table": [[1]], "rules": [[1, 0, 0, 0]]}
    step |= {"positions": [0, 1, 2], "group_of_layer": [0], "entries": [entries()]} | changed
    requests = len(step["lens"])
    group = (
        ints(*step["start"]),
        ints(*step["lens"]),
        ints(*step["slots"]),
        ints(*step["table"]).reshape(requests, len(step["table"][0]) if requests else 1),
        ints(*step["rules"]).reshape(requests, 4),
    )
    core.begin([group], step["group_of_layer"], step["entries"], ints(*step["ids"]), ints(*step["positions"]))


def run(core, **changed):
    begin(core, **changed)
    for part in (core.project, core.attend, core.merge, core.expand, core.contract):
        part(0)
    core.finish()
    return core.hidden()


EMPTY = {"ids": [], "start": [0], "lens": [], "slots": [], "table": [], "rules": [], "positions": []}
BIG = {
    "ids": list(range(20)),
    "start": [0, 20],
    "lens": [20],
    "slots": list(range(8, 28)),
    "table": [[1, 2, 3]],
    "positions": list(range(20)),
}


def test_a_step_without_tokens_is_a_step(core):
    assert run(core, **EMPTY).shape == (0, HIDDEN)
    assert core.logits(ints()).shape == (0, VOCAB)
    assert np.isfinite(run(core)).all()


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"num_threads": 0}, "num_threads is 0"),
        ({"num_threads": -1}, "num_threads is -1"),
        ({"head_dim": 9}, "head_dim is 9"),
        ({"num_heads": 3, "num_kv_heads": 2}, "3 query heads can't share 2"),
        ({"activation": 7}, "no activation 7"),
        ({"hidden_size": 0}, "is 0, must be at least 1"),
        ({"cos": torch.zeros(4, 4)}, "come together"),
    ],
)
def test_a_decoder_that_can_not_be_is_refused(changed, what):
    with pytest.raises(ValueError, match=what):
        make_core(**changed)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"ids": [1, 2, 20]}, r"token_ids\[2\] is 20"),
        ({"slots": [8, 9, 32]}, r"slot_mapping\[2\] is 32, outside \[-1, 32\)"),
        ({"table": [[4]]}, r"block_table\[0\] is 4, outside \[0, 4\)"),
        ({"lens": [9]}, r"seq_lens\[0\] is 9"),
        ({"lens": [2]}, "3 query tokens of a length of 2"),
        ({"start": [1, 3]}, "does not start at 0"),
        ({"start": [0, 2]}, "ends at 2, the step has 3"),
        ({"rules": [[1, -3, 0, 0]]}, r"rules\[1\] is -3"),
        ({"group_of_layer": [1]}, "in group 1 of 1"),
        ({"entries": []}, "0 layers of entries"),
    ],
)
def test_a_step_that_does_not_fit_raises_with_numbers_and_nothing_runs(core, changed, what):
    with pytest.raises(ValueError, match=what):
        begin(core, **changed)
    with pytest.raises(RuntimeError, match="call begin first"):
        core.project(0)


def test_entries_that_are_none_are_refused(core):
    with pytest.raises((RuntimeError, TypeError)):
        begin(core, entries=[None])


def test_entries_of_another_shape_are_refused(core):
    with pytest.raises(ValueError, match="entries of 1 heads of 16, the decoder 1 of 8"):
        begin(core, entries=[entries(block_size=4, head_dim=16)])


def test_layers_of_a_group_have_equally_many_blocks(core):
    add_layer(core, matrices(core))
    with pytest.raises(ValueError, match="has 3 blocks of 8, another layer of its group 4 of 8"):
        begin(core, entries=[entries(), entries(blocks=3)], group_of_layer=[0, 0])


def test_packed_weights_go_into_one_core_once():
    first = make_core()
    packed = matrices(first)
    add_layer(first, packed)
    with pytest.raises(ValueError, match="moved into a core before"):
        add_layer(make_core(), packed)


def test_weights_of_another_shape_are_refused():
    core = make_core()
    packed = matrices(core) | {"down": core.pack(torch.randn(HIDDEN, INNER + 1), None)}
    with pytest.raises(ValueError, match=r"down has shape \[16, 25\], expected \[16, 24\]"):
        add_layer(core, packed)


def test_an_array_outlives_the_buffer_that_it_was_read_from(core):
    small = run(core)
    kept = small.copy()
    grown = core.num_allocations
    run(core, **BIG)
    assert core.num_allocations > grown
    assert np.array_equal(small, kept)  # the larger step has other memory; this stays as it was


def test_a_finished_step_lets_its_entries_go_and_takes_no_more_layers(core):
    memory = torch.zeros(2, BLOCKS, BLOCK * KV_HEADS * DIM)
    gone = weakref.ref(memory)
    begin(core, entries=[native.entries(memory, BLOCK, KV_HEADS, DIM)])
    del memory
    gc.collect()
    assert gone() is not None
    for part in (core.project, core.attend, core.merge, core.expand, core.contract):
        part(0)
    core.finish()
    gc.collect()
    assert gone() is None
    for call in (lambda: core.project(0), lambda: core.attend(0), core.finish):
        with pytest.raises(RuntimeError, match="the step is finished, and its entries are let go"):
            call()
    assert np.isfinite(core.logits(ints(0, 2))).all()
    assert core.gate_report()[0] == 3


def test_logits_lie_in_the_buffer_of_the_next_call(core):
    """What the docstring says: who keeps rows copies them."""
    run(core)
    first = core.logits(ints(0))
    kept = first.copy()
    second = core.logits(ints(2))
    assert np.shares_memory(first, second)
    assert not np.array_equal(kept, second)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_computes_the_same_bits(core):
    run(core, **BIG)
    expected = run(core).copy()
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(run(core), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512", "sse9"])
def test_one_instruction_set_can_be_forced(isa):
    """In a process of its own, as it is read with each choice."""
    code = "from kvpact import _native; print(_native.build_info()['isa'])"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "KVPACT_ISA": isa}, capture_output=True, text=True)
    if isa == "sse9":
        assert "KVPACT_ISA is 'sse9'; it can be avx512, avx2 or baseline" in done.stderr
    elif isa != "baseline" and "this machine lacks AVX" in done.stderr:
        pytest.skip(f"this processor lacks {isa}, and the core said so")
    else:
        assert done.stdout.strip() == isa
