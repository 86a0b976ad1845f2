"""From a batch of logits to one token per job, each by its own parameters, in few tensor
operations. For every engine whose logits are tensors.

    formulas.py    formulas that numpy and torch both compute
    biases.py      what is added to all logits alike: biases, bans, tokens that alone may come
    state.py       one job's parameters and what they remember: token counts, its random numbers,
                   sequences that it repeats (DRY); and the penalties
    batch.py       the rows of a step: what comes before the draw, who is drawn together, and what
                   was chosen, with alternatives, from the raw logits
    draw.py        the draw itself, for rows that are drawn the same way, and its random numbers
    truncation.py  which candidates stay: top-k, top-p, min-p, …; all rows at once; what changes the
                   distribution itself: temperature, dynamic temperature, smoothing

The order is that of the field, and the same on every engine of ours: biases and bans, penalties,
DRY, temperature, truncations, XTC; `temperature_last` moves the temperature behind the truncations.
A job's random numbers are its own, so a seed gives the same text whatever else is in the batch.
"""
