"""What the model lists tell of a model: the registry's state as the dialect's card."""

from gateway.dialects.openai import ModelCard
from gateway.registry import ModelStatus


def card(status: ModelStatus) -> ModelCard:
    """What is known now; a loaded model knows best."""
    files, info = status.files, status.info
    return ModelCard(
        id=status.id,
        created=status.entry.created if status.entry else 0,
        state=status.state,
        backend=files.backend if files else None,
        format=files.format if files else None,
        context_length=info.context_length if info else files.context_length if files else None,
        size_bytes=files.size_bytes if files else None,
        modalities=info.modalities if info else files.modalities if files else ("text",),
    )
