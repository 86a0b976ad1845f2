"""When a model's turn comes: the three times that weigh those who wait against those who are served.

- *linger*: an idle model that was just loaded stays a moment, at most as long as its load took (waiting longer for a
  next request would cost more than loading it again), and at most `min_stay`.
- *quantum*: a model in use that was just loaded takes new work for a multiple of its load time, at least `min_stay`
  and at most `max_wait`, so that most of the time is spent answering and not swapping.
- *turn*: those in line for an absent model have waited, all together, a multiple of what its load costs; or the
  first of them has waited `max_wait`. From then on a model in use may be made to drain for it.

Pure functions of one residency; they know no memory.
"""

from config.settings import SwapConfig
from gateway.registry.residency import Residency

WORTH = 3.0  # a swap is worth it when so many times its load time is waited for it, or served by it


def lingers_until(resident: Residency, rules: SwapConfig) -> float:
    """Until when an idle model is left alone."""
    return resident.loaded_at + min(rules.min_stay, resident.model.load_seconds)


def serves_until(resident: Residency, rules: SwapConfig) -> float:
    """Until when a model in use takes new work, whoever else waits."""
    worth = min(rules.max_wait, WORTH * resident.model.load_seconds)
    return resident.loaded_at + max(rules.min_stay, worth)


def turn_comes_at(claim: Residency, rules: SwapConfig) -> float:
    """From when on models in use drain for `claim`; at once, if it insists."""
    if claim.insists:
        return float("-inf")
    arrivals = [ticket.arrived for ticket in claim.line.values()]
    together = (WORTH * claim.model.load_seconds + sum(arrivals)) / len(arrivals)
    return min(overdue_at(claim, rules), together)


def overdue_at(claim: Residency, rules: SwapConfig) -> float:
    """From when on nothing else is loaded in its way."""
    return claim.oldest + rules.max_wait


def worth(claim: Residency) -> float:
    """Requests answered per second of loading: the order that makes the mean wait shortest (Smith's rule)."""
    return len(claim.line) / max(claim.model.load_seconds, 1e-3)
