"""Who is asked next, and who rests."""

from collections import Counter

from backends.contract.remote import RemoteStanding, RemoteState
from backends.places.upstream.faults import Fault
from backends.places.upstream.replicas import (
    KEPT,
    OUTCOMES_AGE,
    OVERLOAD,
    Balance,
    Replica,
    stable_hash,
)


class Clock:
    """Seconds, as a test says."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


NO = Fault("503", "no")


def balance(*weights: float, patience: int = 3, clock: Clock | None = None) -> Balance:
    replicas = [Replica(url=str(k), weight=w) for k, w in enumerate(weights)]
    return Balance(replicas, patience, clock or Clock())


def states(one: Balance) -> list[str]:
    return [replica.state for replica in one.replicas]


def chosen(one: Balance, conversation: int | None = None) -> str:
    found = one.choose(conversation)
    assert found is not None
    one.began(found)
    one.returns_to(found, conversation)
    return found.url


def test_the_least_busy_is_asked() -> None:
    one = balance(1, 1, 1)

    assert Counter(chosen(one) for _ in range(9)) == {"0": 3, "1": 3, "2": 3}


def test_an_idle_fleet_is_asked_in_turn() -> None:
    one = balance(1, 1)
    urls = []
    for _ in range(4):
        urls.append(chosen(one))
        one.ended(one.replicas[int(urls[-1])])

    assert urls == ["0", "1", "0", "1"]


def test_weights_are_shares() -> None:
    one = balance(3, 1)

    assert Counter(chosen(one) for _ in range(40)) == {"0": 30, "1": 10}


def test_a_conversation_returns_to_where_its_cache_is() -> None:
    one = balance(1, 1)
    chosen(one)
    home = chosen(one, 7)
    chosen(one)

    assert chosen(one, 7) == home


def test_but_not_where_too_many_wait() -> None:
    one = balance(1, 1)
    home = one.replicas[int(chosen(one, 7))]
    home.busy = int(OVERLOAD) + 1

    assert chosen(one, 7) != home.url
    assert chosen(one, 7) != home.url, "and stays where it went"


def test_failures_that_are_most_of_late_and_it_rests() -> None:
    one = balance(1, 1, patience=2)
    sick = one.replicas[0]
    for _ in range(3):
        one.succeeded(sick)
    for _ in range(3):
        one.failed(sick, NO)
    assert states(one) == ["up", "up"], "half of them went well"
    one.failed(sick, NO)

    assert states(one) == ["resting", "up"]
    assert {chosen(one) for _ in range(4)} == {"1"}


def test_failures_of_long_ago_are_forgotten() -> None:
    clock = Clock()
    one = balance(1, patience=2, clock=clock)
    (sick,) = one.replicas
    one.failed(sick, NO)
    clock.now += OUTCOMES_AGE + 1
    one.failed(sick, NO)

    assert sick.state == "up"


def test_one_caller_opens_no_circuit_while_others_get_answers() -> None:
    one = balance(1, patience=2)
    (replica,) = one.replicas
    one.succeeded(replica, "b")
    for _ in range(5):
        one.failed(replica, NO, "a")
    assert states(one) == ["up"]
    one.failed(replica, NO, "c")
    assert states(one) == ["resting"], "two can't be wrong"


def test_what_a_request_may_have_caused_opens_a_circuit_only_with_two_callers() -> None:
    one = balance(1, patience=2)
    (replica,) = one.replicas
    for _ in range(9):
        one.failed(replica, NO, "a", in_doubt=True)
    assert states(one) == ["up"]
    one.failed(replica, NO, "b", in_doubt=True)
    assert states(one) == ["resting"]


def test_who_fails_at_once_is_not_the_least_busy() -> None:
    one = balance(1, 1)
    first = Counter[str]()
    for _ in range(60):
        url = chosen(one)
        first[url] += 1
        replica = one.replicas[int(url)]
        if url == "0":
            one.failed(replica, NO, in_doubt=True)
        else:
            one.succeeded(replica)
        one.ended(replica)

    assert first["0"] == 1


def test_who_comes_back_gets_its_share_and_not_everything() -> None:
    clock = Clock()
    one = balance(1, 1, clock=clock)
    one.replicas[0].draining = True
    for _ in range(500):
        clock.now += 0.1
        one.ended(one.replicas[int(chosen(one))])
    one.replicas[0].draining = False
    back = Counter[str]()
    for _ in range(200):
        clock.now += 0.1
        back[url := chosen(one)] += 1
        one.ended(one.replicas[int(url)])

    assert 100 <= back["0"] <= 140


def test_who_asks_for_a_rest_is_asked_last_until_then() -> None:
    clock = Clock()
    one = balance(1, 1, clock=clock)
    one.rests(one.replicas[0], 5)
    assert {chosen(one) for _ in range(5)} == {"1"}
    one.replicas[1].draining = True
    assert chosen(one) == "0", "better late than never"
    one.replicas[1].draining = False
    clock.now += 6
    assert chosen(one) == "0"


def test_who_lacks_a_model_is_asked_for_others() -> None:
    one = balance(1, 1)
    one.lacks(one.replicas[0], "m")
    assert one.choose(None, (), "m") is one.replicas[1]
    assert one.choose(None, (), "other") is one.replicas[0]
    assert one.choose(None, [one.replicas[1]], "m") is one.replicas[0], "it says so itself"


def test_a_roundhouse_s_other_clients_count() -> None:
    one = balance(1, 1)
    ours = one.replicas[0]
    ours.busy = 2
    ours.listed({"m": RemoteStanding(state="loaded", in_use=2)})
    assert ours.load == 2, "they are ours"
    one.replicas[1].listed({"m": RemoteStanding(state="loaded", in_use=3, waiting=4)})
    assert one.choose(None, (), "m") is ours


def test_a_probe_gives_it_one_request_to_try() -> None:
    one = balance(1, patience=1)
    (sick,) = one.replicas
    one.failed(sick, NO)
    one.probed(sick)

    assert one.choose(None) is sick
    one.began(sick)
    assert one.choose(None) is None, "one at a time"
    one.succeeded(sick)
    assert one.choose(None) is sick
    assert sick.state == "up"


def test_a_trial_that_fails_is_a_rest_again() -> None:
    one = balance(1, patience=3)
    (sick,) = one.replicas
    for _ in range(3):
        one.failed(sick, NO)
    one.probed(sick)
    one.failed(sick, NO)

    assert sick.state == "resting"


def test_who_is_drained_gets_nothing_new() -> None:
    one = balance(1, 1)
    assert chosen(one, 7) == "0"
    one.replicas[0].draining = True

    assert {chosen(one, 7) for _ in range(3)} == {"1"}


def test_who_was_tried_is_not_asked_again() -> None:
    one = balance(1, 1)
    first = one.choose(None)
    assert first is not None
    second = one.choose(None, [first])
    assert second is not None

    assert one.choose(None, [first, second]) is None


def test_conversations_without_end_are_forgotten_at_last() -> None:
    one = balance(1)
    for number in range(KEPT + 10):
        one.returns_to(one.replicas[0], number)

    assert len(one._homes) == KEPT  # noqa: SLF001 - memory is the promise


# ----------------------------------------------------------------------------------- Roundhouses


def standing(state: RemoteState, missing: int = 0) -> dict[str, RemoteStanding]:
    return {"m": RemoteStanding(state=state, missing=missing)}


def test_a_roundhouse_is_asked_by_how_near_the_model_is() -> None:
    """Loaded, loading, fits, fits with less eviction, failed, not listed: in this order."""
    standings = [
        {},
        standing("failed"),
        standing("unloaded", 7),
        standing("unloaded", 3),
        standing("unloaded"),
        standing("loading"),
        standing("loaded"),
    ]
    replicas = [Replica(url=str(k), standings=one) for k, one in enumerate(standings)]
    one, tried = Balance(replicas, 3), list[Replica]()
    while (found := one.choose(None, tried, "m")) is not None:
        tried.append(found)

    assert [replica.url for replica in tried] == ["6", "5", "4", "3", "2", "1", "0"]


def test_a_conversation_leaves_its_home_for_where_the_model_is_loaded() -> None:
    home, other = Replica(url="home"), Replica(url="other")
    one = Balance([home, other], 3)
    one.returns_to(home, 1)
    home.standings, other.standings = standing("unloaded"), standing("loaded")

    assert one.choose(1, (), "m") is other


def test_a_server_that_is_no_roundhouse_expects_nothing() -> None:
    replica = Replica(url="0")
    Balance([replica], 3).began(replica, "m")

    assert replica.standings is None


def test_two_gateways_send_a_conversation_to_the_same_idle_server() -> None:
    urls = [f"http://box{number}/v1" for number in range(3)]
    one = Balance([Replica(url=url) for url in urls], 3)
    other = Balance([Replica(url=url) for url in urls], 3)
    homes = Counter[str]()
    for number in range(300):
        conversation = stable_hash("model", f"user:Hello {number}")
        chosen = [balance.choose(conversation) for balance in (one, other)]
        assert chosen[0] is not None
        assert chosen[1] is not None
        assert chosen[0].url == chosen[1].url
        homes[chosen[0].url] += 1
    assert min(homes.values()) > 60, "each gets its share"


def test_weights_are_shares_of_conversations_too() -> None:
    balance = Balance([Replica(url="http://a", weight=3.0), Replica(url="http://b")], 3)
    chosen = [balance.choose(stable_hash(str(number))) for number in range(400)]
    assert 250 < sum(one is not None and one.url == "http://a" for one in chosen) < 350
