"""llama.cpp in the process: GGUF files through the low-level API of llama-cpp-python, with
continuous batching.

Without an engine:

    files.py      is this a GGUF file, and what will it need?
    gguf.py       the header of one
    soundness.py  what it must be like so that llama.cpp survives it
    dimensions.py, repacking.py  the memory that its graph, and layouts of the CPU's own, take
    projectors.py which projector belongs to it, so that it sees
    encoders.py   whether it makes vectors, or ranks
    defaults.py   the sampling its model's makers suggest
    options.py    what its options are called elsewhere

With one:

    container.py  the door: `load`, `load_encoder`
    loading.py    options -> model and context; progress, cancellation, errors in words
    logged.py     what llama.cpp says meanwhile
    vocabulary.py tokens and texts, cut so that tokenizing a long one ends no process
    sampling.py   a job's wishes -> a sampler chain
    links.py      samplers that llama.cpp lacks
    batch.py      what is computed: a job's sequence, the arrays llama_decode reads, the KV cache
    rows.py       what comes of it: tokens drawn, log probabilities
    engine.py     the loop's body: one `llama_decode` for all sequences
    slots.py      sequences kept in files
    pictures.py   a prompt with pictures -> cells; the vision tower at work (imports mtmd)
    encoder.py    many texts in one pass -> vectors
"""
