"""Constrained decoding, written once for every engine: which tokens may come next, by a grammar.

`tokenizer` makes llguidance's view of a loaded model's vocabulary, `grammars` compiles and keeps
grammars under `limits`, and `matcher` is one job's place in its grammar, and computes what may come
next on other threads while the device works. The driver owns the matchers; an engine sees `Mask`
alone: bits, no grammar. llguidance (https://github.com/guidance-ai/llguidance) is imported nowhere
else below the gateway.
"""
