"""The process that holds a llama.cpp model: `python -m judge_server.engines.llamacpp.child`.

It reads one JSON line of settings and serves llama.cpp's HTTP API on a loopback port under a key that only its parent
has. It prints one JSON line with the address, or with the error, and ends when its standard input closes, so that it
never outlives its parent. It is a separate process so that an assertion in native code does not take the service down.
"""

import json
import os
import sys
from importlib.metadata import version


def main() -> None:
    """Serve until standard input closes."""
    import xllamacpp

    settings = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    params.model.path = settings["model"]
    if settings["lora"] is not None:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(settings["lora"], 1.0)]
    params.n_ctx = settings["context_tokens"]
    params.n_parallel = 1
    params.n_batch = 256  # cancelled calls are noticed between two batches
    if settings["states"]:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
        params.embd_normalize = -1
        params.n_batch = params.n_ubatch = settings["context_tokens"]  # a prompt must fit into one batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.api_keys = [settings["key"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.ui = False
    params.cors_origins = "http://127.0.0.1"
    params.fit_params = False
    params.cache_ram_mib = 0
    params.verbosity = 1
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:  # a traceback would fall into the middle of llama.cpp's log
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"address": server.listening_address, "build": f"xllamacpp {version('xllamacpp')}"}), flush=True)
    sys.stdin.read()
    os._exit(0)  # the native server's teardown may wait for a running decode, and is not needed


if __name__ == "__main__":
    main()
