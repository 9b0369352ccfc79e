"""NumPy arrays are looked at by where their bytes lie, as tensors are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kvpact.doctor.audit.result import AuditFailed, AuditImpossible
from kvpact.doctor.audit.storage import assert_isolated, audit_storage

FLAT = np.arange(2 * 3 * 6 * 8, dtype=np.float64)
WHOLE = FLAT.reshape(2, 3, 6, 8)
FROZEN = WHOLE[1].view()
FROZEN.flags.writeable = False
RECORD = np.zeros(4, dtype=[("flag", np.int8), ("value", np.float64)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (WHOLE, WHOLE),
        ({"keys": [WHOLE[0]]}, {"keys": [WHOLE[0, :, 2:]]}),
        (WHOLE[0], WHOLE[0, ::-1, :, ::-2]),
        (WHOLE[1], FROZEN),
        (WHOLE, torch.from_numpy(FLAT)[7:9]),
        (WHOLE.view(np.uint16), WHOLE[0].view(np.float16)),
        (WHOLE, WHOLE[1, 0, 0, 0:1].reshape(())),
    ],
)
def test_arrays_of_two_owners_that_share_bytes_are_found(one: Any, other: Any) -> None:
    with pytest.raises(AuditFailed, match="share memory"):
        assert_isolated(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (WHOLE, WHOLE.copy()),
        (WHOLE[:, 0], WHOLE[:, 1]),
        (WHOLE[..., ::2], WHOLE[..., 1::2]),
        (WHOLE[..., ::-2], WHOLE[..., ::2]),
        (WHOLE.astype(np.float16), torch.from_numpy(FLAT)),
    ],
)
def test_arrays_that_lie_apart_are_left_in_peace(one: Any, other: Any) -> None:
    assert_isolated(one, other)


def test_rows_that_were_broadcast_are_found() -> None:
    audit = audit_storage(np.broadcast_to(np.zeros((1, 3, 6, 8)), (2, 3, 6, 8)))
    assert [finding.what for finding in audit.findings] == ["every request of cache0 lies in the same memory"]


@pytest.mark.parametrize("given", [np.array([object()]), np.array(["words"]), RECORD["value"], 3])
def test_what_has_no_numbers_in_order_is_refused(given: Any) -> None:
    with pytest.raises(AuditImpossible, match="no tensor and no NumPy array"):
        assert_isolated(given)
