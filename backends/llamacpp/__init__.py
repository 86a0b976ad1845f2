"""llama.cpp in the process: GGUF files through the low-level API of llama-cpp-python, with
continuous batching.

Without an engine:

    files.py      recognises a GGUF file; its memory
    gguf.py       the header of one
    soundness.py  checks for what ends the process in llama.cpp
    dimensions.py, repacking.py  the memory that its graph, and layouts of the CPU's own, take
    projectors.py which projector (image encoder) belongs to it
    encoders.py   whether it makes vectors, or ranks
    defaults.py   the sampling its model's makers suggest
    options.py    what its options are called elsewhere

With one:

    container.py  entry points: `load`, `load_encoder`
    library.py    the bindings, and whether the library fits them
    proof.py      a greedy answer, at an installation
    loading.py    options -> model and context; progress, cancellation, errors
    logged.py     llama.cpp's log of it
    vocabulary.py tokens and texts, cut so that tokenizing a long one ends no process
    sampling.py   a job's parameters -> a sampler chain
    links.py      samplers that llama.cpp lacks
    batch.py      what is computed: a job's sequence, the arrays llama_decode reads, the KV cache
    rows.py       what comes of it: tokens drawn, log probabilities
    engine.py     the loop's body: one `llama_decode` for all sequences
    slots.py      sequences kept in files
    pictures.py   a prompt with pictures -> cells; the image encoder (imports mtmd)
    encoder.py    many texts in one pass -> vectors
"""
