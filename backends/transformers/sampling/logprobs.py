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
    chosen = distribution.gather(-1, picked).squeeze(-1).tolist()
    most = min(max(wanted[row] or 0 for row in rows), logits.shape[-1])
    best = distribution.topk(most, sorted=True)
    values, ids = best.values.tolist(), best.indices.tolist()
    for place, row in enumerate(rows):
        count = wanted[row] or 0
        told[row] = TokenLogprob(
            Candidate(tokens[row], piece(tokens[row]), chosen[place]),
            tuple(
                Candidate(token, piece(token), value)
                for token, value in zip(ids[place][:count], values[place][:count], strict=True)
            ),
        )
    return told
