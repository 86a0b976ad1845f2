"""The placement of a model that is larger than the cards: what stays on them, what goes into main
memory, and how fast it is then. Pure: it knows no engine, no file and no device of its own.

What is tried, the first that fits is taken:

1. all of it on the fewest cards;
2. the experts of the last layers in main memory, as few layers' as possible: a token is computed
   with a few of them, so of all weights they are read least;
3. whole layers in main memory, the first ones, as few as possible;
4. the same with a shorter context or a smaller cache, where these are allowed (`Variant`);
5. all in main memory.

A token's time is the time to read what it is computed with, each part from where it lies. So a
placement's speed is an estimate by bytes and bandwidths, as a part of the speed with everything on
the fastest card.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, islice

import msgspec

MOST_SETS = 32  # of as many cards each, that are compared
EVENLY = 32  # steps in which cards are filled alike


class LayerWeights(msgspec.Struct, frozen=True):
    """Of one layer, in bytes. `shared`: what every token is computed with, attention and norms and
    shared experts; `experts`: those of which a token has few. What is kept of a sequence at 16
    bits: `cache` for each token, `sliding` for each one in a window, `state` for all together.
    """

    shared: int
    experts: int = 0
    cache: int = 0
    sliding: int = 0
    state: int = 0


class ModelWeights(msgspec.Struct, frozen=True, kw_only=True):
    """A model by its layers. `output`: behind the last one, computed as a layer more; `embedding`:
    of which a token reads a row, so that it stays in main memory; `used`: the part of the experts
    that a token is computed with; `largest`: the bytes of the largest matrix of a layer.
    """

    layers: tuple[LayerWeights, ...]
    output: int
    embedding: int = 0
    used: float = 1.0
    largest: int = 0

    @property
    def experts(self) -> tuple[int, ...]:
        """The layers that have experts."""
        return tuple(number for number, layer in enumerate(self.layers) if layer.experts)

    @property
    def read(self) -> float:
        """Bytes that a token is computed with."""
        return sum(map(self.read_of, self.layers)) + self.output

    def read_of(self, layer: LayerWeights) -> float:
        """Bytes of it that a token is computed with."""
        return layer.shared + layer.experts * self.used


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A context and a cache that are wanted, or allowed. Bytes: `caches`: of each layer, `buffers`:
    of each device that computes, `moved`: of each card besides, where weights in main memory are
    copied to it for a prompt; `beside`: what lies with the first card's layers, an image encoder;
    `added`: of main memory besides, where weights lie there.
    """

    context: int  # tokens
    cache_type: str
    is_pool: bool = False  # cells of one context for all requests, where there would be more
    caches: tuple[int, ...]
    buffers: int
    moved: int = 0
    beside: int = 0
    added: int = 0


class Device(msgspec.Struct, frozen=True):
    """A card, or main memory. `bandwidth`: bytes a second that are read of it."""

    name: str
    free: int
    bandwidth: float


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Where everything lies. `layers`: on each card, the output counted as one; the others are in
    main memory, the first ones. `away`: of the layers on cards, the last so many with experts have
    these in main memory. `speed`: of that with all on the fastest card.
    """

    variant: Variant
    layers: Mapping[str, int]
    away: int
    sizes: Mapping[str, int]
    speed: float
    reasons: tuple[str, ...] = ()

    @property
    def on_cards(self) -> int:
        return sum(self.layers.values())

    def is_whole(self, weights: ModelWeights) -> bool:
        """Nothing is in main memory."""
        return not self.away and self.on_cards == len(weights.layers) + 1


def fit(
    weights: ModelWeights, variants: Sequence[Variant], cards: Sequence[Device], main: Device
) -> Fit | None:
    """The placement for these devices; `variants`: the wanted one first. None: nothing of it fits.

    What is taken of a device is never more than is free there. With more memory it is never slower
    for the same variant, and never with a later variant.
    """
    for variant in variants:
        found = list(_on_cards(weights, variant, cards, main))
        if found:
            best = min(found, key=lambda one: (-one.speed, len(one.layers)))
            return _reasoned(best, weights, variants, cards)
    for variant in variants:
        if (alone := _tried(weights, variant, (), main, cards, _steps(weights))) is not None:
            return _reasoned(alone, weights, variants, cards)
    return None


def _on_cards(
    weights: ModelWeights, variant: Variant, cards: Sequence[Device], main: Device
) -> Iterator[Fit]:
    """For each set of cards the way in which most of the model lies on them."""
    steps = _steps(weights)
    for chosen in _sets(cards):
        if (whole := _tried(weights, variant, chosen, main, cards, 0)) is not None:
            yield whole
            continue
        # The first step that fits; the one before `steps` is the last with a layer on a card.
        fits = partial(_filled, weights, variant, chosen)
        low = bisect_left(range(steps), 1, lo=1, key=lambda step: fits(step) is not None)
        if low < steps and (part := _tried(weights, variant, chosen, main, cards, low)) is not None:
            yield part


def _sets(cards: Sequence[Device]) -> Iterator[Sequence[Device]]:
    for count in range(1, len(cards) + 1):
        yield from islice(combinations(cards, count), MOST_SETS)


def _steps(weights: ModelWeights) -> int:
    """The one that leaves nothing on cards; see `_divided`."""
    return len(weights.experts) + len(weights.layers) + 1


def _divided(weights: ModelWeights, step: int) -> tuple[int, int]:
    """How many layers lie on cards, the output among them, and how many of those have no experts
    there: a step takes one layer's experts away, or once none is left a layer.
    """
    away = min(step, len(weights.experts))
    first = step - away  # layers in main memory
    away = sum(number >= first for number in weights.experts[len(weights.experts) - away :])
    return len(weights.layers) + 1 - first, away


def _filled(
    weights: ModelWeights, variant: Variant, cards: Sequence[Device], step: int
) -> list[tuple[int, int]] | None:
    """How many layers go on each card, and the bytes this takes there: all cards filled alike, as
    far as layers can be. None: they don't fit.
    """
    sizes = _sizes(weights, variant, step)
    each = variant.buffers + (variant.moved if step else 0)
    fixed = [each + (0 if place else variant.beside) for place in range(len(cards))]
    for share in range(1, EVENLY + 1):
        pairs = zip(cards, fixed, strict=True)
        rooms = [card.free * share // EVENLY - own for card, own in pairs]
        if (packed := _packed(sizes, rooms)) is not None:
            return [(count, size + own) for (count, size), own in zip(packed, fixed, strict=True)]
    return None


def _sizes(weights: ModelWeights, variant: Variant, step: int) -> list[int]:
    """Of what goes on cards, in the order of the layers."""
    count, away = _divided(weights, step)
    first = len(weights.layers) + 1 - count
    without = weights.experts[len(weights.experts) - away :]
    sizes = [
        layer.shared + variant.caches[number] + (0 if number in without else layer.experts)
        for number, layer in enumerate(weights.layers)
        if number >= first
    ]
    whole = step == 0  # then the embedding is counted there, too: it may be the output's matrix
    return [*sizes, weights.output + (weights.embedding if whole else 0)] if count else []


def _packed(sizes: Sequence[int], rooms: Sequence[int]) -> list[tuple[int, int]] | None:
    """How many of `sizes` go into each room, in their order, and their sum; None: not all do, or a
    room is left empty, which a smaller set of cards does as well.
    """
    packed, place = [], 0
    for room in rooms:
        count, taken = 0, 0
        while place < len(sizes) and taken + sizes[place] <= room:
            taken += sizes[place]
            place, count = place + 1, count + 1
        packed.append((count, taken))
    return packed if place == len(sizes) and all(count for count, _ in packed) else None


def _tried(
    weights: ModelWeights,
    variant: Variant,
    chosen: Sequence[Device],
    main: Device,
    cards: Sequence[Device],
    step: int,
) -> Fit | None:
    """As `step` has it on the `chosen` cards; None: it doesn't fit there, or the rest not in main
    memory.
    """
    if (filled := _filled(weights, variant, chosen, step)) is None:
        return None
    on_cards, away = _divided(weights, step)
    names = [card.name for card in chosen]
    sizes = {name: size for name, (_, size) in zip(names, filled, strict=True)}
    if step:
        sizes[main.name] = _rest(weights, variant, on_cards, away)
        if sizes[main.name] > main.free:
            return None
    return Fit(
        variant=variant,
        layers={name: count for name, (count, _) in zip(names, filled, strict=True)},
        away=away,
        sizes=sizes,
        speed=_speed(weights, on_cards, away, chosen, main, cards),
    )


def _rest(weights: ModelWeights, variant: Variant, on_cards: int, away: int) -> int:
    """Bytes in main memory."""
    below, without = _in_main(weights, on_cards, away)
    size = sum(layer.shared + layer.experts for layer in below) + sum(variant.caches[: len(below)])
    size += sum(layer.experts for layer in without)
    alone = 0 if on_cards else weights.output + variant.beside
    return size + variant.added + weights.embedding + variant.buffers + alone


def _in_main(
    weights: ModelWeights, on_cards: int, away: int
) -> tuple[Sequence[LayerWeights], Sequence[LayerWeights]]:
    """The layers in main memory, and those that have their experts there."""
    # All of them, and the output: one more than layers.
    below = weights.layers[: len(weights.layers) + 1 - on_cards]
    without = weights.experts[len(weights.experts) - away :]
    return below, [weights.layers[number] for number in without]


def _speed(
    weights: ModelWeights,
    on_cards: int,
    away: int,
    chosen: Sequence[Device],
    main: Device,
    cards: Sequence[Device],
) -> float:
    """The slowest of the chosen cards counts for all that lies on cards. Where main memory is read
    faster, it is no slower there.
    """
    best = max([card.bandwidth for card in cards] or [main.bandwidth])
    there = read_in_main(weights, on_cards, away)
    slowest = min([card.bandwidth for card in chosen] or [main.bandwidth])
    seconds = there / main.bandwidth + (weights.read - there) / slowest
    return min(1.0, weights.read / best / seconds) if seconds else 1.0


def read_in_main(weights: ModelWeights, on_cards: int, away: int) -> float:
    """Bytes that a token is computed with in main memory."""
    below, without = _in_main(weights, on_cards, away)
    there = sum(map(weights.read_of, below)) + (0 if on_cards else weights.output)
    return there + sum(layer.experts * weights.used for layer in without)


def reads(weights: ModelWeights, found: Fit, main: str) -> Mapping[str, float]:
    """Bytes of each device that a token is computed with, of cards by their layers; `main`: what
    main memory is called.
    """
    there = read_in_main(weights, found.on_cards, found.away)
    each = (weights.read - there) / max(1, found.on_cards)
    on_cards = {card: each * count for card, count in found.layers.items()}
    return {**on_cards, main: there} if there else on_cards


def _reasoned(
    found: Fit, weights: ModelWeights, variants: Sequence[Variant], cards: Sequence[Device]
) -> Fit:
    """With why it doesn't lie in a better way."""
    reasons = []
    wanted = variants[0]
    if cards and not (found.is_whole(weights) and found.variant == wanted):
        sizes = _sizes(weights, wanted, 0)
        whole = sum(sizes) + wanted.buffers + wanted.beside
        free = ", ".join(f"{card.name} {_gib(card.free)}" for card in cards)
        reasons.append(f"all of it takes {_gib(whole)}, free are {free}")
    reasons += [f"nothing of it fits with {what}" for what, _ in _given_up(found.variant, wanted)]
    return msgspec.structs.replace(found, reasons=tuple(reasons))


def _given_up(variant: Variant, wanted: Variant) -> Iterator[tuple[str, str]]:
    """What of the wanted cache there isn't, and what is in its place."""
    if variant.context != wanted.context:
        tokens = f"{wanted.context:,}"
        instead = f"{variant.context:,} tokens of context in place of {tokens}"
        yield f"{tokens} tokens of context", instead
    if variant.is_pool:
        yield "a cache for more than one context", "a cache of one context for all requests"
    if variant.cache_type != wanted.cache_type:
        kind = wanted.cache_type
        yield f"a cache of {kind}", f"cache {variant.cache_type} in place of {kind}"


def sentence(found: Fit, weights: ModelWeights, wanted: Variant) -> str:
    """`34 of 48 layers' experts in RAM: about 0.4 of full speed`; "" where nothing gave way."""
    parts = []
    count = len(weights.layers)
    below = count + 1 - found.on_cards
    if not found.on_cards:
        parts.append("all in RAM")
    elif below > 0:
        parts.append(f"{below} of {count} layers in RAM")
    elif found.away:
        parts.append(f"{found.away} of {len(weights.experts)} layers' experts in RAM")
    if below > 0 and found.on_cards and found.away:
        parts.append("all experts in RAM")
    parts += [instead for _, instead in _given_up(found.variant, wanted)]
    if not parts:
        return ""
    slower = found.speed < 0.995
    return ", ".join(parts) + (f": about {rounded(found.speed)} of full speed" if slower else "")


def rounded(speed: float) -> str:
    """`0.4`, and `0.04` where it is less than a tenth."""
    return f"{speed:.1f}" if speed >= 0.095 else f"{max(speed, 0.01):.2f}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
