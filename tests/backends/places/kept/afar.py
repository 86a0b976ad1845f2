"""A store that an engine asks as from another process: every message is bytes on its way. A tool of
tests.
"""

from backends.contract.beginnings import Beginnings
from backends.contract.messages import KeptAnswered, KeptAsked
from backends.engines.kept import BeginningsAfar
from backends.places.kept.desk import BeginningsDesk
from tests.backends.loopback import command_of, encode, event_of


def from_afar(beginnings: Beginnings) -> BeginningsAfar:
    """`beginnings`, as an engine elsewhere has them."""

    def tell(asked: KeptAsked) -> None:
        came = event_of(encode(asked))
        assert isinstance(came, KeptAsked)
        desk.ask(came)

    def send(answered: KeptAnswered) -> None:
        came = command_of(encode(answered))
        assert isinstance(came, KeptAnswered)
        afar.answered(came)

    afar = BeginningsAfar(tell)
    desk = BeginningsDesk(beginnings, send)
    return afar
