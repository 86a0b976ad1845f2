"""The raw material of the corpus: words, names, numbers, most of them drawn letter by letter.

Random words are what forces the model to learn copying: a word it has never seen cannot be
recited from memory. Knows nothing of conversations.
"""

from collections.abc import Sequence
from random import Random

CONSONANTS = "bcdfghjklmnpqrstvwxz"
VOWELS = "aeiouy"
LETTERS = "abcdefghijklmnopqrstuvwxyz"

PLAIN_WORDS = (
    "apple", "river", "blue", "green", "house", "stone", "cloud", "bird", "tree", "light", "night",
    "cat", "dog", "red", "sun", "moon", "bread", "water", "door", "road", "train", "engine",
    "hello", "world", "the", "a", "and", "is", "on", "big", "small", "quick", "brown", "fox", "I",
    "like", "we", "go", "home", "today", "good", "morning", "music", "paper", "glass", "gold",
)  # fmt: skip
CITIES = (
    "Paris", "London", "Berlin", "Tokyo", "Rome", "Madrid", "New York", "San Francisco", "Vienna",
    "Oslo", "Prague", "Boston", "Chicago", "Sydney", "Cairo", "Delhi", "Lima", "Zurich", "Munich",
    "Los Angeles", "Hong Kong", "Dublin", "Athens", "Seoul", "Moscow", "Beijing", "Amsterdam",
)  # fmt: skip
FIRST_NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kim",
    "Lena", "Max", "Nora", "Otto", "Paula", "Sam", "Tom", "Alice", "Bob", "Maria", "John",
)  # fmt: skip
# Code points, not words: copying them means copying bytes, one token at a time.
FOREIGN_RANGES = ((0xC0, 0xFF), (0x391, 0x3C9), (0x410, 0x44F), (0x4E00, 0x4FFF), (0x3041, 0x3090))
EMOJI_RANGES = ((0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x1F680, 0x1F6C0))


def letters(rng: Random) -> str:
    """Three to eight letters in no order: "qzvrta"."""
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(3, 8)))


def syllables(rng: Random) -> str:
    """Two or three pronounceable syllables: "velmora"."""
    return "".join(
        rng.choice(CONSONANTS) + rng.choice(VOWELS) + rng.choice(("", "", "n", "r"))
        for _ in range(rng.randint(2, 3))
    )


def random_word(rng: Random) -> str:
    """A word that exists nowhere else."""
    return letters(rng) if rng.random() < 0.5 else syllables(rng)


def _from_ranges(rng: Random, ranges: Sequence[tuple[int, int]], length: int) -> str:
    low, high = rng.choice(ranges)
    return "".join(chr(rng.randint(low, high)) for _ in range(length))


def foreign_word(rng: Random) -> str:
    """One emoji, or a few characters of one foreign script."""
    if rng.random() < 0.4:
        return _from_ranges(rng, EMOJI_RANGES, 1)
    return _from_ranges(rng, FOREIGN_RANGES, rng.randint(1, 4))


def number(rng: Random) -> str:
    """One to four digits."""
    return str(rng.randint(0, 10 ** rng.randint(1, 4) - 1))


def copied_word(rng: Random) -> str:
    """One word of a text to be repeated: mostly random, sometimes plain, a name or a number."""
    kind = rng.random()
    if kind < 0.6:
        return random_word(rng)
    if kind < 0.8:
        return rng.choice(PLAIN_WORDS)
    if kind < 0.92:
        return person(rng)
    return number(rng) if kind < 0.96 else letters(rng).upper()


def phrase(rng: Random, most: int = 7) -> str:
    """One to `most` words to be repeated, sometimes a sentence, sometimes foreign."""
    words = [copied_word(rng) for _ in range(rng.randint(1, most))]
    if rng.random() < 0.12:
        words[rng.randrange(len(words))] = foreign_word(rng)
    if rng.random() < 0.1:
        words[rng.randrange(len(words))] += rng.choice((",", "-", ";", "'s", "!"))
    text = " ".join(words)
    if rng.random() < 0.2:
        text = text[0].upper() + text[1:] + rng.choice((".", "!", "?"))
    return text


def person(rng: Random) -> str:
    """A first name, most often an invented one."""
    return rng.choice(FIRST_NAMES) if rng.random() < 0.25 else random_word(rng).capitalize()


def place(rng: Random) -> str:
    """A city, most often an invented one, of one to three words."""
    if rng.random() < 0.25:
        return rng.choice(CITIES)
    count = rng.choices((1, 2, 3), (75, 20, 5))[0]
    name = " ".join(random_word(rng).capitalize() for _ in range(count))
    return f"{name}, {random_word(rng).capitalize()}" if rng.random() < 0.08 else name
