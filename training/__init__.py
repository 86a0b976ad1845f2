"""How the bundled demonstration model is made: corpus, tokenizer, training, export, check.

Nothing here is needed to run the gateway; `bundled` holds the finished files.
"""
