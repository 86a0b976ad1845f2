"""The scheduler's refusals as the errors a client sees."""

from gateway.errors import GatewayError, ModelUnavailable, QueueFull, ShuttingDown
from gateway.registry.orders import Refuse


def refusal(model: str, order: Refuse) -> GatewayError:
    """The error for one refused ticket."""
    match order.why:
        case "queue_full":
            return QueueFull(order.reason, retry_after=order.retry_after)
        case "closing":
            return ShuttingDown(order.reason)
        case "failed":
            text = f"{model} could not be loaded: {order.reason}"
            return ModelUnavailable(text, param="model", retry_after=order.retry_after)
        case "too_large" | "unloaded":
            return ModelUnavailable(order.reason, param="model", retry_after=order.retry_after)
