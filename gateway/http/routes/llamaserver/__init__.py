"""llama-server's routes, and other model management: `transformers serve`'s, and simple ones for
people.
"""

from gateway.http.routes.llamaserver import (
    completions,
    embeddings,
    models,
    props,
    slots,
    status,
    streams,
    texts,
)

ROUTES = (
    *status.ROUTES,
    *models.ROUTES,
    *props.ROUTES,
    *slots.ROUTES,
    *texts.ROUTES,
    *completions.ROUTES,
    *embeddings.ROUTES,
    *streams.ROUTES,
)
