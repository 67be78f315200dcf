"""`python -m benchmarks.bare_engine.llamacpp_server PORT FILE CONTEXT [counts]`: llama.cpp as in `llama-server`.

It has four slots with a unified KV cache, while the engine `llamacpp://` has one slot. With `counts`, it reports its
counters at `/metrics`. It exits when its standard input closes.
"""

import os
import sys


def main() -> None:
    """Serve until standard input closes."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.port, params.model.path, params.n_ctx = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    params.n_parallel, params.kv_unified = 4, True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 1
    params.hostnames = ["127.0.0.1"]
    params.ui = False
    params.verbosity = 1
    params.endpoint_metrics = sys.argv[4:] == ["counts"]
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
