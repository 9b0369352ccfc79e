"""The data plane: lazily zeroed memory, copies in order, bytes that are counted."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from kvpact.cache.spec import CacheSpec, GroupKind, LayerGroup
from kvpact.errors import InvalidConfig
from kvpact.ids import BlockId
from kvpact.kv.storage import MEMORY_PAGE, KVStorage
from kvpact.visibility import Visibility

STATM = Path("/proc/self/statm")
SMAPS = Path("/proc/self/smaps")
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage")


class Copy(NamedTuple):
    group: str
    source: BlockId
    target: BlockId


def spec(num_blocks: int = 6, entry_bytes: int = 4, block_size: int = 4) -> CacheSpec:
    full = LayerGroup(name="full", kind=GroupKind.FULL, layers=(0, 2), num_kv_heads=2, head_dim=8, visibility=Visibility())
    window = LayerGroup(name="window", kind=GroupKind.WINDOW, layers=(1,), num_kv_heads=2, head_dim=8, visibility=Visibility(window=4))
    return CacheSpec(groups=(full, window), block_size=block_size, num_blocks=num_blocks, entry_bytes=entry_bytes)


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * 4096


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_layer_has_zeroed_keys_and_values_of_its_own(dtype: torch.dtype) -> None:
    storage = KVStorage(spec(entry_bytes=dtype.itemsize), dtype, touch=True)
    places = set()
    for index in range(3):
        layer = storage.layer(index)
        for entries in (layer.keys, layer.values):
            assert entries.shape == (6, 4, 2, 8)
            assert entries.dtype == dtype
            assert entries.is_contiguous()
            assert not entries.any()
            places.add(entries.data_ptr())
    assert len(places) == 6
    assert storage.nbytes == 6 * 6 * 4 * 2 * 8 * dtype.itemsize
    assert storage.data_ptr(2, BlockId(0)) == (storage.layer(2).keys.data_ptr(), storage.layer(2).values.data_ptr())
    assert storage.data_ptr(0, BlockId(0))[0] % MEMORY_PAGE == 0


@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from Linux's /proc")
def test_memory_is_taken_at_start_when_touched_and_at_first_write_otherwise() -> None:
    before = resident_bytes()
    lazy = KVStorage(spec(num_blocks=1 << 17), torch.float32, touch=False)
    after_lazy = resident_bytes()
    touched = KVStorage(spec(num_blocks=1 << 17), torch.float32, touch=True)
    after_touch = resident_bytes()
    assert lazy.nbytes == touched.nbytes == 192 << 20
    assert after_lazy - before < 8 << 20
    assert after_touch - after_lazy > 180 << 20


def flags_of_mapping(address: int) -> set[str]:
    """What the system says of the mapping that holds an address: `hg` large pages are wanted, `sh` shared."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(span[1], 16) <= address < int(span[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError(f"no mapping holds {address:x}")


@pytest.mark.skipif(not SMAPS.exists() or not LARGE_PAGES.exists(), reason="needs Linux with transparent large pages")
def test_entries_lie_in_private_memory_for_which_large_pages_are_wanted() -> None:
    storage = KVStorage(spec(num_blocks=64), torch.float32, touch=False)
    flags = flags_of_mapping(storage.data_ptr(0, BlockId(1))[0])
    assert "hg" in flags
    assert "sh" not in flags
    shared = mmap.mmap(-1, 1 << 16)  # what a mapping is without a word about it
    assert "sh" in flags_of_mapping(np.frombuffer(shared, dtype=np.uint8).ctypes.data)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_what_a_forked_child_writes_stays_in_the_child() -> None:
    keys = KVStorage(spec(), torch.float32, touch=True).layer(0).keys
    child = os.fork()
    if child == 0:
        keys.fill_(7)
        os._exit(0 if (keys == 7).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (keys == 0).all()


def test_copies_reach_all_layers_of_their_group_in_order_and_nothing_else() -> None:
    storage = KVStorage(spec(), torch.float32, touch=False)
    for index in range(3):
        storage.layer(index).keys[1] = 10 + index
        storage.layer(index).values[1] = 20 + index
    copied = storage.copy_blocks([Copy("full", BlockId(1), BlockId(2)), Copy("full", BlockId(2), BlockId(3))])
    assert copied == 2 * (2 * 2 * 4 * 2 * 8 * 4)
    assert [float(storage.layer(index).keys[3, 0, 0, 0]) for index in range(3)] == [10, 0, 12]
    assert [float(storage.layer(index).values[3, 3, 1, 7]) for index in range(3)] == [20, 0, 22]
    assert not storage.layer(0).keys[[0, 4, 5]].any()
    assert storage.copy_blocks([]) == 0


def test_clearing_a_block_clears_it_in_its_group_only() -> None:
    storage = KVStorage(spec(), torch.float32, touch=False)
    for index in range(3):
        storage.layer(index).keys[1:3] = 1
        storage.layer(index).values[1:3] = 1
    storage.clear_blocks([("full", BlockId(1))])
    for index, cleared in ((0, True), (1, False), (2, True)):
        layer = storage.layer(index)
        assert bool(layer.keys[1].any()) is not cleared
        assert bool(layer.values[1].any()) is not cleared
        assert bool(layer.keys[2].all())


def test_memory_that_the_system_does_not_have_is_refused_with_its_size() -> None:
    with pytest.raises(InvalidConfig, match=r"does not give \d+ bytes") as refusal:
        KVStorage(spec(num_blocks=1 << 44), torch.float32, touch=False)
    assert refusal.value.numbers["nbytes"] == (1 << 44) * 4 * 2 * 2 * 8 * 2 * 4


def test_a_dtype_that_the_cache_was_not_sized_for_is_refused_with_both_sizes() -> None:
    with pytest.raises(InvalidConfig, match=r"entries of 4 bytes, torch.bfloat16 has 2"):
        KVStorage(spec(entry_bytes=4), torch.bfloat16, touch=False)
