"""Shared settings of the tests."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)

# "thorough" is for a release or a change to the cache: HYPOTHESIS_PROFILE=thorough
settings.register_profile("default", max_examples=300, deadline=None, print_blob=True)
settings.register_profile("thorough", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
