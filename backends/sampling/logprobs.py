"""What was chosen and the best alternatives, from the model's own distribution before sampling."""

from collections.abc import Callable, Sequence

import torch

from backends.protocol import Candidate, TokenLogprob

Piece = Callable[[int], bytes]


def logprobs(
    logits: torch.Tensor, tokens: Sequence[int], wanted: Sequence[int | None], piece: Piece
) -> list[TokenLogprob | None]:
    """For each row of `logits` (jobs, vocabulary) its token's logprob and `wanted` alternatives;
    None: not asked.
    """
    told: list[TokenLogprob | None] = [None] * len(tokens)
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return told
    distribution = logits[rows].log_softmax(-1)
    picked = torch.tensor([[tokens[row]] for row in rows], device=logits.device)
    most = min(max(wanted[row] or 0 for row in rows), logits.shape[-1])
    best = distribution.topk(most, sorted=True)
    found = (distribution.gather(-1, picked), best.values, best.indices)
    # One copy from the device; a float64 holds every id exactly.
    copied = torch.cat([part.double() for part in found], -1).tolist()
    for row, (chosen, *others) in zip(rows, copied, strict=True):
        count = min(wanted[row] or 0, most)
        values, ids = others[:count], others[most : most + count]
        told[row] = TokenLogprob(
            Candidate(tokens[row], piece(tokens[row]), chosen),
            tuple(
                Candidate(int(token), piece(int(token)), value)
                for token, value in zip(ids, values, strict=True)
            ),
        )
    return told
