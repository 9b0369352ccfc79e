"""Shared settings of the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# What the command shows depends on these, by design; what a test sees, and the processes that it starts, must not.
for name in ("CI", "GITHUB_ACTIONS", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)

# "thorough" is for a release or a change to the cache: HYPOTHESIS_PROFILE=thorough
settings.register_profile("default", max_examples=300, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model of an architecture, made once."""
    from tiny_models import save_tiny_model  # here, for it brings transformers in, which most tests don't need

    made: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in made:
            path = tmp_path_factory.mktemp(architecture)
            save_tiny_model(path, architecture)
            made[architecture] = path
        return made[architecture]

    return folder
