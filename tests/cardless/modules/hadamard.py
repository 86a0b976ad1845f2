"""What both packages do to a group of a cache's numbers before they quantize it, so that outliers
are shared out.
"""

import torch

GROUP = 32  # numbers that share a scale


def _hadamard() -> torch.Tensor:
    """Whose square is the identity."""
    found = torch.ones(1, 1)
    while len(found) < GROUP:
        found = torch.cat((torch.cat((found, found), 1), torch.cat((found, -found), 1)))
    return found * GROUP**-0.5


TURN = _hadamard()
