"""The promise, bit for bit: logits, entries, log-probabilities and sampled tokens depend on a prompt's own context, and on nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from builds import needs_native
from covering import Row, pairwise
from faults import FAULTS
from ledger import Ledger, first_difference, num_compared
from matrix import AXES, LONG, NUMBERS, PLAIN, TREATMENTS, Subject, describe, observe, observe_in_new_process, reference_run, subjects_of
from tiny_models import ARCHITECTURES

Folder = Callable[[str], Path]

#: The array also runs on a model whose sums and rows are large enough for more than one unit of work.
MODELS = (*ARCHITECTURES, "wide")
ARRAY = pairwise(AXES)
#: One model, one worker: its references are computed once.
in_full = pytest.mark.parametrize("architecture", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in MODELS])
IN_COMPANY = PLAIN | {"company": "7"}
#: Each axis alone, at each value that is not the plain one.
SINGLE = [{axis: value} for axis, values in AXES.items() for value in values[1:]]
#: Of them, what every test run does: numbers on one architecture, treatments on all, in this process.
QUICK = [(name, change) for name in ARCHITECTURES for change in SINGLE if name == "llama" or not set(change) & set(NUMBERS)]
QUICK = [(name, change) for name, change in QUICK if "process" not in change]

pytestmark = needs_native


def described(value: Row | str) -> str:
    return value if isinstance(value, str) else describe(PLAIN | value)


Check = Callable[[str, Row], None]


@pytest.fixture
def check(references, new_processes, tiny_folder: Folder) -> Check:
    """check(architecture, row): the row's prompts give what each gives alone, to the bit."""

    def equal(architecture: str, row: Row) -> None:
        subjects = subjects_of(row)
        if row["process"] == "new":
            ledger = new_processes.of(architecture, row, [other for other in ARRAY if other["process"] == "new"])
        else:
            ledger = observe(tiny_folder(architecture), row, subjects)
        reference = references.of(architecture, row, subjects)
        difference = first_difference(ledger, reference)
        assert difference is None, f"{architecture}; {describe(row)}: {difference}"
        assert len(ledger.answers) == sum(subject.num_choices for subject in subjects)
        assert num_compared(ledger, reference) > len(subjects)

    return equal


@pytest.mark.parametrize(("architecture", "change"), QUICK, ids=described)
def test_no_axis_changes_a_bit_of_a_prompt_in_company(check: Check, architecture: str, change: Row) -> None:
    check(architecture, IN_COMPANY | change)


@pytest.mark.parametrize("index", range(len(ARRAY)))
@pytest.mark.parametrize("architecture", ["llama"])
def test_no_pair_of_axes_changes_a_bit(check: Check, architecture: str, index: int) -> None:
    check(architecture, ARRAY[index] | {"process": "this"})


@pytest.mark.invariance
@pytest.mark.parametrize("index", range(len(ARRAY)))
@in_full
def test_no_pair_of_axes_changes_a_bit_of_any_model(check: Check, architecture: str, index: int) -> None:
    check(architecture, ARRAY[index])


@pytest.mark.invariance
@pytest.mark.parametrize("change", SINGLE, ids=described)
@in_full
@pytest.mark.parametrize("company", ["alone", "32"])
def test_no_axis_alone_changes_a_bit_of_any_model(check: Check, company: str, architecture: str, change: Row) -> None:
    check(architecture, PLAIN | {"company": company} | change)


def test_a_new_process_computes_the_same_bits(references, tiny_folder: Folder) -> None:
    row = IN_COMPANY | {"process": "new", "sampling": "seeded", "threads": "2"}
    ledger = observe_in_new_process(tiny_folder("llama"), [row])[0]
    assert len(ledger.answers) == 7
    assert first_difference(ledger, references.of("llama", row, subjects_of(row))) is None


@pytest.mark.parametrize(
    "change",
    [{"chunk": "64"}, {"chunk": "whole", "threads": "2"}, {"chunk": "64", "prefix": "partial", "block_size": "32", "threads": "2"}],
    ids=described,
)
def test_a_context_of_several_segments_keeps_its_bits(references, tiny_folder: Folder, change: Row) -> None:
    """Running sums of attention are closed every 1,024 positions; partial results are shared among threads and combined."""
    subjects = [Subject(LONG, 1), Subject(0, 1), Subject(1, 1)]
    row = IN_COMPANY | change
    ledger, reference = observe(tiny_folder("wide"), row, subjects), references.of("wide", row, subjects)
    assert first_difference(ledger, reference) is None
    assert max(map(len, ledger.logits)) > 2100


@pytest.mark.parametrize("company", TREATMENTS["company"])
def test_torch_operators_change_bits(tiny_folder: Folder, company: str) -> None:
    """The inverse: the same comparison, on operators that promise a tolerance only, finds a difference."""
    folder, row = tiny_folder("llama"), PLAIN | {"company": company, "chunk": "16"}
    subjects = subjects_of(row)
    alone = observe(folder, PLAIN, sorted(subjects, key=lambda subject: subject.number), "ops=torch")
    alone.conflicts.clear()
    assert first_difference(observe(folder, row, subjects, "ops=torch"), alone) is not None


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_changes_bits(references, tiny_folder: Folder, fault) -> None:
    row = IN_COMPANY | {"chunk": "16", "gate": "off"}  # or the gate would end the step before a bit shows it
    subjects = subjects_of(row)
    assert first_difference(observe(tiny_folder("llama"), row, subjects, plant=fault), references.of("llama", row, subjects)) is not None


@pytest.mark.parametrize("kind", ["logits", "entries"])
def test_one_flipped_bit_is_found_and_placed(references, tiny_folder: Folder, kind: str) -> None:
    subjects = subjects_of(PLAIN)
    reference = references.of("llama", PLAIN, subjects)
    ledger = reference_run(tiny_folder("llama"), PLAIN, [0])
    assert first_difference(ledger, reference) is None
    context = next(context for context in ledger.logits if len(context) == 20)
    bits = getattr(ledger, kind)[context] = getattr(ledger, kind)[context].copy()
    bits[np.unravel_index(bits.size - 1, bits.shape)] ^= 1
    place = "logit of token 319" if kind == "logits" else "layer 2, values[15]"
    difference = first_difference(ledger, reference)
    assert difference is not None
    assert f"{kind} of position 19" in difference
    assert place in difference
    assert "1 of" in difference


def test_a_minus_zero_is_not_a_zero() -> None:
    ledgers = [Ledger(), Ledger()]
    for ledger, zero in zip(ledgers, (0.0, -0.0), strict=True):
        ledger.note("logits", (1,), np.array([zero], dtype=np.float32).view(np.int32))
    assert first_difference(*ledgers) is not None
