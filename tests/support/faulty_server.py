"""A server with a fault, to be examined by hand: `python tests/support/faulty_server.py one-too-long`, from a checkout."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from prefix_cached import FAULTS, PrefixCached
from served import serving
from tiny_models import save_tiny_model


def main() -> None:
    fault = sys.argv[1] if len(sys.argv) > 1 else None
    if fault not in (None, *FAULTS):
        sys.exit(f"one of {', '.join(FAULTS)}, or nothing for a healthy server")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_model(Path(folder), "llama")
    with serving(PrefixCached(model, fault)) as served:
        print(served.url, flush=True)
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main()
