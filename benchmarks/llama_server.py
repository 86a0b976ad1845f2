"""llama.cpp's own server, out of the `xllamacpp` wheel, which has no command of its own.

Run by the interpreter of the peer's environment, which has nothing of this project:

    python benchmarks/llama_server.py MODEL PORT CONTEXT SLOTS CACHE_TYPE [DRAFTS [THREADS]]

`CONTEXT` is the tokens that each of `SLOTS` requests at a time has room for. `DRAFTS`: as
`llama-server --spec-type` has it, `none` or `ngram-simple`, say. All else is as the server's
defaults have it.
"""

import signal
import sys

import xllamacpp  # type: ignore[import-not-found,import-untyped,unused-ignore]  # the peer's


def main() -> None:
    """Serve until the process is ended."""
    model, port, context, slots, cache_type, *more = sys.argv[1:]
    drafts, threads = [*more, "none", "0"][:2] if len(more) < 2 else more
    kind = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{cache_type.upper()}")
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_parallel = int(slots)
    params.n_ctx = int(slots) * int(context)
    params.cache_type_k = params.cache_type_v = kind
    kinds = xllamacpp.common_speculative_type
    drafting = f"COMMON_SPECULATIVE_TYPE_{drafts.upper().replace('-', '_')}"
    params.speculative.types = [getattr(kinds, drafting)]
    if int(threads):
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
