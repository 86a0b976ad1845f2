"""transformers in the process: Hugging Face folders, with continuous batching and pictures.

    files.py          recognises such a folder, by its JSON files (no engine needed)
    loading.py        options -> model, with LoRA; progress, cancellation, errors
    memory.py         when memory runs out, and giving it back
    grid.py           the cache: rows of cells and of states, one row per sequence, and how many
    forward.py        one pass over neighbouring rows; the trial of whether a model can do that
    traced.py         the same pass without Python, recorded when the model is loaded
    batching.py       the loop's body: one pass for all answers, prompts in chunks between
    sampler.py        the next tokens of jobs that share a pass
    solo.py           jobs that can't share passes, one after another through `generate`, with the
                      model's own processor
    engine.py         the engine the driver steps: batching and solo side by side
    draft.py          a small model that drafts for a large one
    offload.py        the split of a model's layers between its card and main memory
    encoder.py        models that make vectors or rank
    encoder_steps.py  what their folders say of that
    container.py      entry point: `load`

Batching is our own step loop over the model's plain forward, not transformers'
`ContinuousBatchingManager`. Both were measured on the bundled model (0.85 million parameters, one
thread, tokens per CPU second; `benchmarks/transformers_engines.py`) at 1, 4 and 16 answers:

    bare forward with a DynamicCache, likeliest token     797   2,560   6,013
    our engine, likeliest token                           698   2,381   5,054
    our engine, temperature, top-k, top-p                 583   2,189   4,459
    ContinuousBatchingManager, temperature                289     923   1,992

The manager's cost per step is fixed, so large models on a GPU would feel it less; but its samplers
per request are temperature, top-k and top-p alone, and it keeps a thread and a queue of its own
between the driver and the model. The grid works with whatever takes a ready-made mask and a cache
object, and that is tried on each model when it is loaded: what can't goes through `solo`.
"""
