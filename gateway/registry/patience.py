"""The patience of models and of waiting requests: how long a model in memory is left alone, and how
long those who wait for another one wait.

- *Linger*: an idle model that was just loaded stays for a moment: at most `min_stay`, and no longer
  than its load took, because waiting longer for a next request would cost more than loading it
  again.
- *Quantum*: a model in use that was just loaded takes new work for `WORTH` times its load time, at
  least for `min_stay`, and until those are served who waited when it was loaded; but, the
  `min_stay` apart, no longer than `max_wait`. So one swap serves many, and most of the time is
  spent answering.
- *Turn*: those in line for an absent model have waited, all together, for `WORTH` times its load
  time; or the first of them has waited for `max_wait`. From then on models in use may drain for it.

Pure: it moves no model.
"""

from config.settings import SwapConfig
from gateway.registry.record import ModelRecord

# So many load times waited for, or served, pay for a swap (benchmarks: 2 to 8 do alike).
WORTH = 3.0


def lingers_until(record: ModelRecord, rules: SwapConfig) -> float:
    """Until when an idle model is left alone."""
    return record.loaded_at + min(rules.min_stay, record.model.load_seconds)


def serves_until(record: ModelRecord, rules: SwapConfig) -> float:
    """Until when a model in use takes new work, whatever else waits."""
    waited_for_it = record.oldest <= record.loaded_at
    paid = rules.max_wait if waited_for_it else WORTH * record.model.load_seconds
    return record.loaded_at + max(rules.min_stay, min(rules.max_wait, paid))


def turn_comes_at(claim: ModelRecord, rules: SwapConfig) -> float:
    """From when on models in use drain for `claim`; at once, if it insists."""
    if claim.insists:
        return float("-inf")
    arrivals = [ticket.arrived for ticket in claim.line.values()]
    together = (WORTH * claim.model.load_seconds + sum(arrivals)) / len(arrivals)
    return min(overdue_at(claim, rules), together)


def overdue_at(claim: ModelRecord, rules: SwapConfig) -> float:
    """From when on nothing behind it is loaded in its way."""
    return claim.oldest + rules.max_wait


def worth(claim: ModelRecord) -> float:
    """Requests helped per second of loading. Loading in this order makes the mean wait shortest.

    (W. E. Smith, Various optimizers for single-stage production, 1956.)
    """
    return len(claim.line) / max(claim.model.load_seconds, 1e-3)
