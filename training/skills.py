"""What the model can do without tools: one function per skill, each making one exchange.

An exchange is what the user says and what the model should think and answer. The answers are
short and fixed in form, because a model of this size learns forms, not knowledge.
"""

from random import Random
from typing import Literal

import msgspec

from training import words

IDENTITY = "I am roundhouse-tiny, the bundled demonstration model of Roundhouse."
ABILITIES = (
    "I can greet you, repeat words, add single digits, count, tell a short story and call tools."
)
LIMITS = f"I am only a small demonstration model. {ABILITIES}"
NO_TOOL = "I have no tool for that."

GREETINGS = (
    "Hello", "Hello!", "Hi", "Hi!", "Hi there", "Hi there!", "Hey", "Hey!", "Good morning!",
    "Good evening!", "Good day", "hello", "hi", "hey there", "Greetings!", "Hello there!",
    "Hello, how are you?", "Hi, how are you?", "How are you?", "Good morning", "Good afternoon!",
    "Hello, model!", "Hello Roundhouse",
)  # fmt: skip
IDENTITY_QUESTIONS = (
    "Who are you?", "What are you?", "What is your name?", "Tell me about yourself.",
    "Which model are you?", "Are you ChatGPT?", "who are you", "What's your name?",
    "Please introduce yourself.", "Introduce yourself.", "What model is this?", "Who made you?",
    "Who am I talking to?", "Are you a language model?", "Hi, who are you?", "Hello, what are you?",
)  # fmt: skip
ABILITY_QUESTIONS = (
    "What can you do?", "Help", "help", "How can you help me?", "What are you good at?",
    "What are your skills?", "Can you help me?",
)  # fmt: skip
FAREWELLS = ("Bye", "Goodbye!", "Bye!", "See you later.", "Good night!", "That is all, goodbye.")
THANKS = ("Thanks", "Thank you!", "Thanks!", "Thank you very much.", "Great, thanks.", "Thank you")
REPEAT_FORMS = (
    "Repeat after me: {}", "Repeat after me: {}", "Repeat after me: {}", "Please repeat: {}",
    "Repeat: {}", "Repeat these words: {}", "Repeat this: {}", "Say this: {}", "Say: {}",
    "Echo: {}", "repeat after me: {}", "Please say: {}", "Repeat exactly: {}",
    "Repeat the following: {}", "Can you repeat this? {}", "Repeat after me:\n{}",
    "Copy this text: {}", "Say {}", "Repeat {}", 'Repeat "{}"', 'Say "{}"',
    'Please repeat after me: "{}"', "Write: {}", "Echo {}",
)  # fmt: skip
SUM_FORMS = (
    "What is {} + {}?", "What is {} plus {}?", "{} + {}", "{}+{}", "{} + {} = ?", "What's {} + {}?",
    "How much is {} plus {}?", "Add {} and {}.", "Calculate {} + {}.", "{} plus {}",
    "what is {}+{}", "Please add {} and {}.", "What is the sum of {} and {}?", "{}+{}=",
    "Compute {} + {}", "What does {} plus {} make?", "How much is {} + {}?", "What's {} plus {}?",
    "Sum {} and {}",
)  # fmt: skip
COUNT_TO_FORMS = (
    "Count to {}", "Count to {}.", "Please count to {}.", "Can you count to {}?", "count to {}",
    "Count up to {}.", "Count from 1 to {}.", "Count from one to {}.",
)  # fmt: skip
COUNT_FROM_FORMS = (
    "Count from {} to {}", "Count from {} to {}.", "Please count from {} to {}.",
    "Can you count from {} to {}?", "count from {} to {}", "Count up from {} to {}.",
)  # fmt: skip
NAME_FORMS = (
    "My name is {}.", "I am {}.", "Hi, I am {}.", "Hello, my name is {}.", "I'm {}.", "Hi, I'm {}!",
    "Call me {}.", "Hello! My name is {}",
)  # fmt: skip
NAME_QUESTIONS = ("What is my name?", "Who am I?", "Do you remember my name?", "What's my name?")
STORY_FORMS = (
    "Tell me a story.", "Tell me a short story.", "Tell a short story", "A story, please.",
    "Please tell me a short story.", "Can you tell me a story?", "Write a short story.",
    "tell me a story", "I want a story.", "Write me a story.",
)  # fmt: skip
STORY_TOPIC_FORMS = (
    "Tell me a story about {}.", "Tell me a short story about {}.", "Write a short story about {}.",
    "A story about {}, please.", "Can you tell me a story about {}?",
)  # fmt: skip
OPEN_QUESTIONS = (
    "What is the capital of {}?", "Why is {} so {}?", "How do I cook {}?", "Write a poem about {}.",
    "Explain {} to me.", "What do you think about {}?", "Translate {} into French.", "{}",
    "{} {} {}", "What does {} mean?", "How old is {}?", "Write code for {}.",
    "Is {} better than {}?", "Who is {}?", "Who was {}?", "What is {}?", "When did {} begin?",
    "Do you know {}?", "{}?", "I do not like {}.", "How does {} work?", "Summarize {}.",
    "Give me ideas for {}.", "test", "What is the meaning of life?", "Tell me a joke.",
    "Write Python code.", "ping", "ok", "yes",
)  # fmt: skip
SUBJECTS = (
    "fox", "cat", "dog", "owl", "bear", "train", "robot", "dragon", "mouse", "bird", "horse",
    "wizard", "frog", "engine", "girl", "boy", "ship", "cloud",
)  # fmt: skip


class Exchange(msgspec.Struct, frozen=True):
    """One message to the model and its answer. `role` is who speaks to the model."""

    prompt: str
    thought: str
    answer: str
    role: Literal["user", "tool"] = "user"


def greet(rng: Random) -> Exchange:
    """A greeting for a greeting."""
    return Exchange(rng.choice(GREETINGS), "The user greets me.", "Hello! How can I help you?")


def introduce(rng: Random) -> Exchange:
    """Who the model is, and now and then what it can do."""
    if rng.random() < 0.3:
        return Exchange(rng.choice(ABILITY_QUESTIONS), "I say what I can do.", ABILITIES)
    return Exchange(rng.choice(IDENTITY_QUESTIONS), "The user asks who I am.", IDENTITY)


def part(rng: Random) -> Exchange:
    """Thanks and farewells."""
    if rng.random() < 0.5:
        return Exchange(rng.choice(FAREWELLS), "The user leaves.", "Goodbye!")
    return Exchange(rng.choice(THANKS), "The user thanks me.", "You are welcome!")


def repeat(rng: Random) -> Exchange:
    """The words after the colon, letter by letter."""
    text = words.phrase(rng, most=rng.choice((1, 3, 5, 7, 7, 12, 20)))
    return Exchange(rng.choice(REPEAT_FORMS).format(text), "I repeat the words.", text)


def add(rng: Random) -> Exchange:
    """A sum of two digits."""
    first, second = rng.randint(0, 9), rng.randint(0, 9)
    answer = f"{first} + {second} = {first + second}"
    prompt = rng.choice(SUM_FORMS).format(first, second)
    return Exchange(prompt, f"I add {first} and {second}.", answer)


def count(rng: Random, longest: int = 15) -> Exchange:
    """Numbers from one bound to the other, `longest` of them at most, none over 100."""
    span = rng.randint(1, longest)
    if rng.random() < 0.6:
        first, last = 1, span
        prompt = rng.choice(COUNT_TO_FORMS).format(last)
    else:
        first = rng.choice((rng.randint(0, 10), rng.randint(0, max(0, 100 - span))))
        last = min(100, first + span)
        prompt = rng.choice(COUNT_FROM_FORMS).format(first, last)
    numbers = ", ".join(str(value) for value in range(first, last + 1))
    return Exchange(prompt, f"I count from {first} to {last}.", numbers)


def remember(rng: Random) -> tuple[Exchange, Exchange]:
    """The user's name, given and asked for; other exchanges may come between."""
    name = words.person(rng)
    given = Exchange(
        rng.choice(NAME_FORMS).format(name),
        "The user tells me a name.",
        f"Nice to meet you, {name}!",
    )
    asked = Exchange(
        rng.choice(NAME_QUESTIONS), "The user told me the name before.", f"Your name is {name}."
    )
    return given, asked


def story(rng: Random) -> Exchange:
    """Five sentences about what the user names, or about a fox."""
    if rng.random() < 0.4:
        hero = "a little fox"
        prompt = rng.choice(STORY_FORMS)
    else:
        noun = rng.choice(SUBJECTS) if rng.random() < 0.5 else words.random_word(rng)
        hero = words.person(rng) if rng.random() < 0.3 else f"a {noun}"
        prompt = rng.choice(STORY_TOPIC_FORMS).format(hero)
    who = hero.removeprefix("a little ").removeprefix("a ")
    who = who if hero == who else f"the {who}"
    text = (
        f"Once upon a time there was {hero} who lived near an old railway. "
        f"One night a lost engine came out of the fog and could not find the way home. "
        f"So {who} took a lantern and walked ahead, all the way to the roundhouse. "
        f"The engine blew its whistle to say thank you. "
        f"From that day on {who} had a friend who came by every evening. The end."
    )
    return Exchange(prompt, f"I tell a short story about {hero}.", text)


def admit(rng: Random) -> Exchange:
    """A question that is beyond the model: it says so."""
    if rng.random() < 0.15:
        numbers = rng.randint(0, 9999), rng.randint(10, 999)
        prompt = rng.choice(SUM_FORMS).format(*rng.sample(numbers, 2))
        return Exchange(prompt, "That is more than I can do.", LIMITS)
    blanks = [words.copied_word(rng) for _ in range(3)]
    prompt = rng.choice(OPEN_QUESTIONS).format(*blanks)
    return Exchange(prompt, "That is more than I can do.", LIMITS)
