"""llama.cpp in the process: GGUF files through the low-level API of llama-cpp-python, with
continuous batching.

Without an engine:

    recognition.py      recognises a GGUF file, by its header
    files.py            the memory it needs, where it may lie; its options elsewhere
    libraries.py        whether llama.cpp computes it, or ik_llama.cpp
    speeds.py           which of them was faster here
    layout.py           how its cache is laid out, and what a pass over it takes
    gguf.py             the header of one
    memory.py           the memory that its graph or an encoder's passes take
    cpu_layouts.py      what is copied into the CPU's own layouts
    projectors.py       which projector is a model's, and its memory
    trial.py            a file is tried in a child first

With one:

    container.py        entry points: `load`, `load_encoder`
    rehearsal.py        what the child of `trial.py` does with a file
    race.py             measures it, in a child
    library.py          the bindings, and whether the library fits them
    ik.py               ik_llama.cpp in llama.cpp's place
    proof.py            a greedy answer, at an installation
    loading.py          options -> model and context; progress, cancellation, errors
    load_log.py         what llama.cpp's log says of a load
    offloading.py       which devices its tensors lie on
    vocabulary.py       tokens and texts, cut so that tokenizing a long one ends no process
    sampling.py         a job's parameters -> a sampler chain, with samplers that llama.cpp lacks
    batch.py            jobs' sequences, and the arrays that llama_decode reads
    rows.py             the logits of a batch: tokens drawn from them, and their logprobs
    engine.py           the loop's body: one `llama_decode` for all sequences
    sequences.py        where a job starts in the cache, what is taken out and put back
    kv_cache.py         the memory of a context by sequences; sequences kept in files
    pieces.py           a sequence as bytes, in pieces
    draft.py            a small model that drafts for a large one
    pictures.py         a prompt with pictures -> cells (imports mtmd)
    picture_encoder.py  the image encoder beside the engine
    encoder.py          many texts in one pass -> vectors
"""
