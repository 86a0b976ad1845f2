"""llama-server's routes, and other model management: `transformers serve`'s, and simple ones for
people.
"""

from gateway.http.openapi.models import Routes
from gateway.http.routes import hub
from gateway.http.routes.llamaserver import completions, models, slots

ROUTES: Routes = {
    **models.ROUTES,
    **slots.ROUTES,
    **completions.ROUTES,
    **hub.LLAMASERVER_ROUTES,
}
