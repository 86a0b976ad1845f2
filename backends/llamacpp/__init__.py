"""llama.cpp in the process: GGUF files through the low-level API of llama-cpp-python, with
continuous batching.

    files.py      is this a GGUF file, and what does its header say? (no engine needed)
    projectors.py which projector belongs to it, so that it sees (no engine needed)
    defaults.py   the sampling its model's makers suggest (no engine needed)
    kv_cache.py   the cells of sequences: what is left of one that was cut
    library.py    the C functions the loop calls, with and without releasing the GIL
    loading.py    options -> model and context; progress, cancellation, errors in words
    vocabulary.py tokens and texts
    runs.py       where a long text is cut, so that tokenizing it ends no process
    sampling.py   a job's wishes -> a sampler chain; logprobs
    pictures.py   a prompt with pictures -> cells; computing them (imports mtmd)
    sight.py      the vision tower at work, beside the engine
    running.py    one job's sequence
    batch.py      the arrays llama_decode reads
    engine.py     the loop's body: one `llama_decode` for all sequences
    container.py  the door: `load`
"""
