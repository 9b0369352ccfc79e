"""The receptive field of attention of any shape, against what is declared."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import SwinConfig
from transformers.models.swin.modeling_swin import SwinLayer

from attention_modules import Axial, AxialLeak, AxialSequential, Causal, Fused, Line, SelfCache, built
from kvpact.doctor.audit.result import AuditFailed, AuditImpossible
from kvpact.doctor.audit.visibility import audit_visibility, axial, matrix, receptive_field, shifted_windows
from kvpact.doctor.faults.models import VOCAB, tiny_llama, tiny_mistral
from kvpact.visibility import Visibility

INPUTS = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", [Causal, Fused])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_a_causal_module_sees_what_its_rule_says(kind: Any, window: int | None) -> None:
    audit_visibility(built(kind, window=window), Visibility(window=window), inputs=INPUTS).check()


def test_every_declaration_says_the_same() -> None:
    module, rule = built(Causal, window=3), Visibility(window=3)
    grid = matrix(rule, (9,))
    for declared in (rule, grid, torch.from_numpy(grid), lambda q, k: 0 <= q - k < 3):
        audit_visibility(module, declared, inputs=INPUTS).check()


class OneAhead(Causal):
    def mask(self, new: int, keys: int) -> Tensor:
        return torch.ones(new, keys, dtype=torch.bool).tril(1)


class WindowShort(Causal):
    def mask(self, new: int, keys: int) -> Tensor:
        return super().mask(new, keys) & ~torch.ones(new, keys, dtype=torch.bool).tril(1 - self.window)  # type: ignore[operator]


def test_a_leak_is_found_exactly_with_its_grid() -> None:
    audit = audit_visibility(built(OneAhead), Visibility(), inputs=INPUTS[:, :4])
    (finding,) = audit.findings
    assert finding.code == "KV216"
    assert finding.exact
    assert finding.what == "place 0 sees 1: the future, up to 1 ahead"
    assert finding.evidence["grid"] == ["oL..", "ooL.", "oooL", "oooo"]
    with pytest.raises(AuditFailed, match="oooL"):
        audit.check()


def test_draws_end_when_all_that_is_wanted_is_seen() -> None:
    wanted = matrix(Visibility(), (9,))
    found = receptive_field(built(OneAhead), INPUTS, until=wanted)
    assert found.draws == 1
    assert (found.seen & ~wanted).sum() == 8


def test_draws_go_on_while_something_is_missing() -> None:
    found = receptive_field(built(WindowShort, window=4), INPUTS, until=matrix(Visibility(window=4), (9,)))
    assert found.draws == 3


def test_what_is_missing_is_found() -> None:
    (finding,) = audit_visibility(built(WindowShort, window=4), Visibility(window=4), inputs=INPUTS).findings
    assert finding.what == "place 3 does not see 0: 3 back"
    assert finding.got == "6 pairs missing, in 6 places"


@pytest.mark.parametrize(("model", "rule"), [(tiny_llama, Visibility()), (tiny_mistral, Visibility(window=15))])
def test_a_whole_model_is_a_function_of_token_ids(model: Callable[[], Any], rule: Visibility) -> None:
    """Two layers with a window of 8 reach 7 and 7 places back."""
    module = model()
    ids = torch.randint(8, VOCAB, (1, 20), generator=torch.Generator().manual_seed(0))
    audit = audit_visibility(lambda ids: module(input_ids=ids).logits, rule, inputs=ids, alphabet=VOCAB)
    assert audit.ok, str(audit)


def test_a_module_that_keeps_a_cache_can_not_be_audited() -> None:
    with pytest.raises(AuditImpossible):
        audit_visibility(built(SelfCache), Visibility(), inputs=INPUTS)


def test_a_function_that_sees_nothing_is_said_to() -> None:
    audit = audit_visibility(torch.zeros_like, np.zeros((9, 9), dtype=bool), inputs=INPUTS)
    with pytest.raises(AuditImpossible, match="nothing could have been seen"):
        audit.check()


def test_what_can_not_be_looked_at_is_refused() -> None:
    with pytest.raises(AuditImpossible, match="whole numbers"):
        receptive_field(torch.relu, torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(AuditImpossible, match="places of the input"):
        receptive_field(lambda x: x[:, :2], INPUTS)
    with pytest.raises(AuditImpossible, match="matrix"):
        matrix(np.ones((2, 3), dtype=bool), (2,))


HEIGHT, WIDTH, WINDOW = 8, 8, 4


def swin(shift: int, kind: type[SwinLayer] = SwinLayer) -> Callable[[Tensor], Tensor]:
    """One layer of transformers' Swin with random weights, as a function of [batch, height, width, dim]."""
    config = SwinConfig(embed_dim=8, num_heads=[2], depths=[2], window_size=WINDOW, image_size=32, patch_size=4)
    config._attn_implementation = "eager"
    layer = built(kind, config, 8, (HEIGHT, WIDTH), 2, shift_size=shift)
    return lambda x: layer(x.flatten(1, 2), (HEIGHT, WIDTH))[0].unflatten(1, (HEIGHT, WIDTH))


class NoMask(SwinLayer):
    """Windows are shifted, and what rolled over the edge meets what did not."""

    def get_attn_mask(self, *_: Any, **__: Any) -> None:
        return None


class NoWayBack(SwinLayer):
    """Windows are shifted, and not shifted back."""

    def cyclic_shift(self, hidden_states: Tensor, reverse: bool = False) -> Tensor:
        return hidden_states if reverse else super().cyclic_shift(hidden_states)


GRID = torch.randn(1, HEIGHT, WIDTH, 8, generator=torch.Generator().manual_seed(2))


def test_windows_of_a_grid_by_hand() -> None:
    plain, shifted = shifted_windows(4, 4, 2), shifted_windows(4, 4, 2, shift=1)
    assert np.flatnonzero(plain[0]).tolist() == [0, 1, 4, 5]
    # The corner rolled over both edges: it is alone. The middle four are a window.
    assert np.flatnonzero(shifted[0]).tolist() == [0]
    assert np.flatnonzero(shifted[5]).tolist() == [5, 6, 9, 10]
    assert np.flatnonzero(shifted[1]).tolist() == [1, 2]


@pytest.mark.parametrize("shift", [0, 2])
def test_swin_sees_its_windows(shift: int) -> None:
    expected = shifted_windows(HEIGHT, WIDTH, WINDOW, shift)
    audit_visibility(swin(shift), expected, inputs=GRID, axes=(1, 2), draws=2).check()


def test_swin_without_the_mask_of_its_shift_leaks_over_the_edge() -> None:
    expected = shifted_windows(HEIGHT, WIDTH, WINDOW, 2)
    (finding,) = audit_visibility(swin(2, NoMask), expected, inputs=GRID, axes=(1, 2), draws=2).findings
    # 16 corner cells meet 12 of other corners; in the 4 strips at the edges 32 cells meet 8 over the edge.
    assert finding.got == "448 pairs leak, in 48 places"
    assert finding.what.startswith("place (0, 0) sees (0, 6), (0, 7)")


def test_swin_that_is_not_shifted_back_sees_other_places() -> None:
    found = audit_visibility(swin(2, NoWayBack), shifted_windows(HEIGHT, WIDTH, WINDOW, 2), inputs=GRID, axes=(1, 2), draws=2).findings
    assert {finding.got.split()[2].rstrip(",") for finding in found} == {"leak", "missing"}


CELLS = torch.randn(1, 5, 5, 8, generator=torch.Generator().manual_seed(3))


def test_attention_over_rows_and_columns_sees_a_cross() -> None:
    audit_visibility(built(Axial), axial(5, 5), inputs=CELLS, axes=(1, 2), draws=2).check()
    audit_visibility(built(Axial), lambda q, k: q[0] == k[0] or q[1] == k[1], inputs=CELLS, axes=(1, 2), draws=2).check()


@pytest.mark.parametrize("kind", [AxialLeak, AxialSequential])
def test_rows_that_leak_into_columns_are_found(kind: type[Axial]) -> None:
    (finding, *_) = audit_visibility(built(kind), axial(5, 5), inputs=CELLS, axes=(1, 2), draws=2).findings
    assert "sees" in finding.what


def test_attention_along_one_axis_of_a_grid_sees_its_line() -> None:
    audit_visibility(built(Line, 8, 5), lambda q, k: q[0] == k[0], inputs=CELLS, axes=(1, 2)).check()


def test_an_output_that_is_no_number_is_told_from_one_that_is_drawn_anew() -> None:
    with pytest.raises(AuditImpossible, match="no number"):
        receptive_field(lambda inputs: inputs * float("nan"), INPUTS)
    with pytest.raises(AuditImpossible, match="different outputs"):
        receptive_field(torch.rand_like, INPUTS)


def test_a_module_of_several_inputs_is_refused_with_the_way_to_wrap_it() -> None:
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    with pytest.raises(AuditImpossible, match=r"MultiheadAttention takes 3 inputs \(query, key, value\)") as caught:
        audit_visibility(module, Visibility(), inputs=INPUTS)
    assert "lambda x: module(x, x, x)" in caught.value.hint
    assert "[0]" in caught.value.hint
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
    audit_visibility(lambda x: module(x, x, x, attn_mask=hidden)[0], Visibility(), inputs=INPUTS).check()


def test_a_module_that_breaks_off_is_refused_with_its_reason() -> None:
    with pytest.raises(AuditImpossible, match=r"Linear broke off on inputs of shape \(2, 9, 16\): RuntimeError") as caught:
        audit_visibility(torch.nn.Linear(7, 7), Visibility(), inputs=INPUTS)
    assert caught.value.__cause__ is not None


def test_an_output_without_the_places_is_refused_with_what_came() -> None:
    with pytest.raises(AuditImpossible, match=r"\(2, 16\), \(1,\) came") as caught:
        receptive_field(lambda x: (x.mean(1), {"length": torch.zeros(1)}), INPUTS)
    assert "module(x)[0]" in caught.value.hint
    with pytest.raises(AuditImpossible, match="no tensor came"):
        receptive_field(lambda x: None, INPUTS)


def test_a_word_is_no_declaration_and_is_told_what_is() -> None:
    with pytest.raises(AuditImpossible, match="'causal' is no declaration of what is seen") as refused:
        audit_visibility(built(Causal), "causal", inputs=INPUTS)  # type: ignore[arg-type]  # the mistake itself
    assert "lambda query, key: key <= query" in refused.value.hint
