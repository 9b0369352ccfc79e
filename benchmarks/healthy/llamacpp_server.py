"""llama.cpp's server over a GGUF file, with f32 entries and one thread: llamacpp_server.py FILE PORT."""

from __future__ import annotations

import sys
import threading

import xllamacpp


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx, params.n_parallel, params.kv_unified = 8192, 8, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
