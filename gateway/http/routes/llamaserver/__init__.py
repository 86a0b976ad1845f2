"""llama-server's routes, and other model management: `transformers serve`'s, and simple ones for
people.
"""

from gateway.http.routes.llamaserver import completions, models, slots

ROUTES = (*models.ROUTES, *slots.ROUTES, *completions.ROUTES)
