"""Native operators compute by themselves, on each build of their kernels, without allocating; where they are missing it is said."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import kvpact
from builds import needs_native
from kvpact.attention.registry import BackendRegistry
from kvpact.attention.verify import verify
from kvpact.config import EngineConfig
from kvpact.engine.engine import Engine
from kvpact.engine.load import load_engine
from kvpact.errors import InvalidConfig
from kvpact.params import SamplingParams
from ledger import first_difference, num_compared
from matrix import PLAIN, observe, reference_run, subjects_of
from runs import error, finish, prompt, rows_of, run, whole_rows

TinyEngine = Callable[..., Engine]

#: Views, indexing, copies and what makes an array known to torch. Everything else computes.
ALLOWED = {
    "aten.lift_fresh.default",
    "aten.to.device",
    "aten.to.dtype_layout",
    "aten.detach.default",
    "aten.detach_.default",
    "aten.resolve_conj.default",
    "aten.resolve_neg.default",
    "aten.select.int",
    "aten.index.Tensor",
    "aten.arange.default",
    "aten.copy_.default",
    "aten.zero_.default",
}


class RefuseArithmetic(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(str(func))
        if str(func) not in ALLOWED:
            raise AssertionError(f"torch computes: {func}")
        return func(*args, **(kwargs or {}))


def forked_run(engine: Engine) -> set[str]:
    """Torch's operators while a forked and a plain request run to their end."""
    engine.add({"prompt_token_ids": prompt(18)}, whole_rows(n=3))
    engine.add({"prompt_token_ids": prompt(33, 2)}, SamplingParams(temperature=0.9, top_k=20, max_tokens=12))
    with RefuseArithmetic() as mode:
        finish(engine)
    return mode.seen


@needs_native
@pytest.mark.parametrize("switches", [(), ("logits_rows=all", "pool_reuse=off", "mask_lowering=dense"), ("kv_cache_dtype=bfloat16",)])
@pytest.mark.parametrize("architecture", ["qwen2", "gpt2"])
def test_no_torch_operator_computes_in_a_native_step(tiny_engine: TinyEngine, architecture: str, switches: tuple[str, ...]) -> None:
    assert "aten.copy_.default" in forked_run(tiny_engine("native", *switches, architecture=architecture))


def test_torch_operators_do_compute(tiny_engine: TinyEngine) -> None:
    with pytest.raises(AssertionError, match="torch computes: aten"):
        forked_run(tiny_engine("torch"))


@pytest.fixture
def no_numpy_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's form of each operator between logits and token ends the run."""

    def refuse(*_: object) -> None:
        raise AssertionError("numpy samples")

    for part in ("exponential", "tree_sum", "Ordering", "numpy_draw.draw", "philox.uniform"):
        monkeypatch.setattr(f"kvpact.model.row_ops.{part}", refuse)


def sampled_run(engine: Engine) -> None:
    """Greedy and drawn tokens, with and without processors and log-probabilities."""
    for options in ({"temperature": 0}, {"top_p": 0.9, "logprobs": 3}, {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2}):
        engine.add({"prompt_token_ids": prompt(9)}, SamplingParams(max_tokens=3, **options))
    finish(engine)


@needs_native
def test_no_numpy_operator_samples_where_the_core_is_built(tiny_engine: TinyEngine, no_numpy_sampling: None) -> None:
    sampled_run(tiny_engine("native"))


def test_numpy_samples_without_the_core(tiny_engine: TinyEngine, no_numpy_sampling: None, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine("torch")
    monkeypatch.setattr("kvpact.model.row_ops.compiled", lambda: None)
    with pytest.raises(AssertionError, match="numpy samples"):
        sampled_run(engine)


@pytest.fixture(params=["baseline", "avx2", "avx512"])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One build of the kernels, forced; the core looks whenever it is made."""
    native = pytest.importorskip("kvpact._native", reason="this build of kvpact has no compiled core")
    monkeypatch.setenv("KVPACT_ISA", request.param)
    try:
        assert native.build_info()["isa"] == request.param
    except RuntimeError as error:
        pytest.skip(str(error))
    return str(request.param)


def test_each_build_agrees_with_the_oracle_within_rounding(isa: str, tiny_engine: TinyEngine) -> None:
    from kvpact.ops.native import NativeOperators

    verify(NativeOperators())
    for architecture in ("llama", "qwen2", "gpt2"):
        prompts = [prompt(33), prompt(18, 1)]
        ours, exact = (run(tiny_engine(ops, architecture=architecture), prompts, whole_rows(4)) for ops in ("native", "reference"))
        for left, right in zip(ours, exact, strict=True):
            assert error(rows_of(left), rows_of(right)) < 1e-5


@pytest.mark.parametrize(("architecture", "company"), [("llama", "7"), ("wide", "2")])
def test_each_build_is_invariant_in_itself(isa: str, tiny_folder: Callable[[str], Path], architecture: str, company: str) -> None:
    folder, together = tiny_folder(architecture), PLAIN | {"company": company}
    for row in (together | {"chunk": "3", "block_size": "8"}, together | {"threads": "2", "prefix": "partial"}):
        subjects = subjects_of(row)
        ledger, reference = observe(folder, row, subjects), reference_run(folder, row, sorted(subject.number for subject in subjects))
        assert num_compared(ledger, reference) > len(subjects)
        assert first_difference(ledger, reference) is None


@needs_native
@pytest.mark.parametrize("name", ["sse9", "AVX2", "neon"])
def test_an_unknown_build_is_refused_with_those_that_exist(tiny_engine: TinyEngine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("KVPACT_ISA", name)
    for ops in ("native", "torch"):  # sampling is the compiled core's either way
        expected = f"nothing was computed: KVPACT_ISA is '{name}'; it can be avx512, avx2 or baseline"
        with pytest.raises(InvalidConfig, match=expected) as refusal:
            tiny_engine(ops)
        assert "unset KVPACT_ISA" in refusal.value.hint
        assert refusal.value.numbers == {"isa": name}


@needs_native
def test_after_warm_up_no_step_allocates_until_a_larger_one_comes(tiny_engine: TinyEngine) -> None:
    engine = tiny_engine("native", architecture="qwen2")
    core = engine._runner._decoder._core
    for number in range(8):
        engine.add({"prompt_token_ids": prompt(20 + number, number)}, SamplingParams(max_tokens=60, ignore_eos=True))
    engine.step()
    warm = core.num_allocations
    assert warm > 0
    for _ in range(50):
        assert len(engine.step()) == 8
        assert core.num_allocations == warm
    engine.add({"prompt_token_ids": prompt(300)}, SamplingParams(max_tokens=1))
    finish(engine)
    assert core.num_allocations > warm


@pytest.fixture
def without_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an installation with KVPACT_PURE=1: there is no module `kvpact._native`."""
    monkeypatch.setitem(sys.modules, "kvpact._native", None)
    monkeypatch.delattr(kvpact, "_native", raising=False)


def test_without_the_compiled_core_torch_is_taken_with_one_clear_warning(without_core: None, tiny_folder: Callable[[str], Path]) -> None:
    with pytest.warns(UserWarning, match="without its compiled core") as warned:
        engine = load_engine(str(tiny_folder("llama")), EngineConfig(kv_cache_memory=4 << 20))
    assert len(warned) == 1
    text = str(warned[0].message)
    assert "promise a tolerance, not bits" in text
    assert "--switch ops=torch" in text
    assert engine._runner._ops.name == "torch"
    output = run(engine, [prompt(18)], whole_rows(3))[0]  # and nothing more is said: a warning would be an error
    assert np.isfinite(rows_of(output).rows).all()


def test_who_chose_torch_is_not_warned(without_core: None, recwarn: pytest.WarningsRecorder) -> None:
    assert BackendRegistry.default().resolve("torch").name == "torch"
    assert not recwarn.list


def test_without_the_compiled_core_native_is_refused_with_the_way_out(without_core: None) -> None:
    with pytest.raises(InvalidConfig, match="'native' can't be used here") as refusal:
        BackendRegistry.default().get("native")
    assert refusal.value.hint == "use --switch ops=torch"


@needs_native
def test_with_the_compiled_core_auto_is_native_and_nothing_is_said(recwarn: pytest.WarningsRecorder) -> None:
    assert BackendRegistry.default().resolve("auto").name == "native"
    assert not recwarn.list


def test_named_ranges_count_every_call_and_their_times_add_up_to_less_than_the_whole(tiny_folder: Callable[[str], Path]) -> None:
    engine = load_engine(str(tiny_folder("llama")), EngineConfig(kv_cache_memory=4 << 20))
    core = engine._runner._decoder._core
    run(engine, [prompt(18)], whole_rows(3))
    assert {count for count, _ in core.ranges().values()} == {0}
    core.enable_ranges(True)
    start = time.perf_counter()
    run(engine, [prompt(18)], whole_rows(4))
    whole, ranges = time.perf_counter() - start, core.ranges()
    layers = engine._runner._decoder.config.num_layers
    assert {name: count for name, (count, _) in ranges.items()} == {
        **dict.fromkeys(("begin", "finish", "logits"), 4),
        **dict.fromkeys(("project", "attend", "merge", "expand", "contract"), 4 * layers),
    }
    assert 0 < sum(seconds for _, seconds in ranges.values()) < whole
