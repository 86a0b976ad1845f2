"""What models of real weights are asked: shapes, calls and a chat, each with what a sensible answer
says where one can be named. The same for every model and for other servers.

`says`: a text stands in the value (case aside), a number is it, a list holds at least these.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

TEXT, WHOLE, NUMBER, FLAG = ({"type": kind} for kind in ("string", "integer", "number", "boolean"))


class Shape(msgspec.Struct, frozen=True):
    """A question whose answer has a schema."""

    asked: str
    schema: Mapping[str, Any]
    says: Mapping[str, Any] = {}


class Call(msgspec.Struct, frozen=True):
    """A request that one of `TOOLS` answers. `tool` "": none of them does."""

    asked: str
    tool: str
    says: Mapping[str, Any] = {}


def record(**members: Any) -> dict[str, Any]:
    """The schema of an object with all of these members and no others."""
    names = list(members)
    return {
        "type": "object",
        "properties": members,
        "required": names,
        "additionalProperties": False,
    }


def some(each: Mapping[str, Any], **limits: int) -> dict[str, Any]:
    """The schema of a list."""
    return {"type": "array", "items": each, **limits}


def one_of(*values: Any) -> dict[str, Any]:
    """The schema of a choice."""
    return {"enum": [*values]}


SHAPES = (
    Shape(
        "Extract: John Smith is 42 years old and lives in Paris.",
        record(name=TEXT, age=WHOLE, city=TEXT),
        {"name": "John", "age": 42, "city": "Paris"},
    ),
    Shape(
        "What is the sentiment of: I love this phone, it is wonderful!",
        record(sentiment=one_of("positive", "negative", "neutral")),
        {"sentiment": "positive"},
    ),
    Shape(
        "The primary colors are red, blue and yellow. List them.",
        record(colors=some(TEXT, minItems=3, maxItems=3)),
        {"colors": ["red", "blue", "yellow"]},
    ),
    Shape(
        "The capital of Italy is Rome. Which country, which capital?",
        record(country=TEXT, capital=TEXT),
        {"country": "Italy", "capital": "Rome"},
    ),
    Shape(
        "Extract the date and the hour: The meeting is on 2024-05-17 at 10 o'clock.",
        record(date={"type": "string", "format": "date"}, hour=WHOLE),
        {"date": "2024-05-17", "hour": 10},
    ),
    Shape(
        "Extract the address: Please write to anna@example.com for help.",
        record(email={"type": "string", "format": "email"}),
        {"email": "anna@example.com"},
    ),
    Shape(
        "Extract: Maria lives at 12 Main Street in Berlin, Germany.",
        record(name=TEXT, address=record(street=TEXT, city=TEXT, country=TEXT)),
        {"name": "Maria", "address": {"city": "Berlin"}},
    ),
    Shape(
        "Extract the order: 2 apples and 3 bananas.",
        record(items=some(record(name=TEXT, count=WHOLE), minItems=1, maxItems=4)),
        {"items": [{"name": "apple", "count": 2}]},
    ),
    Shape(
        "Extract: The book costs 12.5 dollars.",
        record(product=TEXT, price=NUMBER, currency=one_of("USD", "EUR")),
        {"product": "book", "price": 12.5},
    ),
    Shape(
        "Give a recipe for pancakes.",
        record(title=TEXT, ingredients=some(TEXT, maxItems=6), steps=some(TEXT, maxItems=6)),
        {"title": "pancake"},
    ),
    Shape(
        "Extract: The movie Titanic was released in 1997.",
        record(title=TEXT, year=WHOLE),
        {"title": "Titanic", "year": 1997},
    ),
    Shape(
        "Extract: It is 21 degrees and sunny in Madrid.",
        record(city=TEXT, temperature=WHOLE, sky=one_of("sunny", "cloudy", "rainy")),
        {"city": "Madrid", "temperature": 21, "sky": "sunny"},
    ),
    Shape(
        "Extract: Tom is 30. Anna is 25. Both are married.",
        some(record(name=TEXT, age=WHOLE, married=FLAG), minItems=2, maxItems=2),
        [{"name": "Tom", "age": 30}, {"name": "Anna", "age": 25}],  # type: ignore[arg-type]
    ),
    Shape(
        "Extract the code: The part number is AB-1234.",
        record(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"}),
        {"code": "AB-1234"},
    ),
    Shape(
        "Extract: The server web1 listens on port 8080 and is enabled.",
        record(server=record(host=TEXT, port=WHOLE, enabled=FLAG)),
        {"server": {"host": "web1", "port": 8080}},
    ),
    Shape(
        "A circle with radius 5.",
        {
            "anyOf": [
                record(shape={"const": "circle"}, radius=NUMBER),
                record(shape={"const": "square"}, side=NUMBER),
            ]
        },
        {"shape": "circle", "radius": 5},
    ),
    Shape(
        "Write three tags for an article about cooking pasta.",
        record(tags=some(TEXT, minItems=3, maxItems=3)),
    ),
    Shape(
        "Extract: Peter, no phone number, 2 children.",
        record(name=TEXT, phone={"type": ["string", "null"]}, children=WHOLE),
        {"name": "Peter", "children": 2},
    ),
    Shape(
        "Make a title and a summary of: The cat sat on the mat and slept all day.",
        record(title=TEXT, summary=TEXT),
        {"summary": "cat"},
    ),
    Shape(
        "Invent a character for a game: a brave knight called Arthur.",
        record(
            name=TEXT,
            level={"type": "integer", "minimum": 1, "maximum": 20},
            skills=some(record(skill=TEXT, power=WHOLE), minItems=1, maxItems=3),
        ),
        {"name": "Arthur"},
    ),
)


def _tool(name: str, description: str, **members: Any) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": record(**members)}
    return {"type": "function", "function": function}


TOOLS = (
    _tool("get_weather", "Get the weather in a city", city=TEXT),
    _tool("add", "Add two numbers", a=NUMBER, b=NUMBER),
    _tool("send_email", "Send an email", to=TEXT, subject=TEXT, body=TEXT),
    _tool(
        "set_alarm",
        "Set an alarm for an hour of the day",
        hour={"type": "integer", "minimum": 0, "maximum": 23},
    ),
)

# `tool_choice`: the tool.
FORCED = (
    Call("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
    Call("What is the weather like in Berlin today?", "get_weather", {"city": "Berlin"}),
    Call("How warm is it in Tokyo?", "get_weather", {"city": "Tokyo"}),
    Call("Add 3 and 4.", "add", {"a": 3, "b": 4}),
    Call("What is 12 plus 30?", "add", {"a": 12, "b": 30}),
    Call("Add 100 and 250.", "add", {"a": 100, "b": 250}),
    Call("Email bob@example.com that I will be late.", "send_email", {"to": "bob@example.com"}),
    Call("Write to anna@example.com: thanks!", "send_email", {"to": "anna@example.com"}),
    Call("Send a mail to the_boss@example.org about the meeting.", "send_email"),
    Call("Wake me at 7.", "set_alarm", {"hour": 7}),
    Call("Set an alarm for 6 o'clock.", "set_alarm", {"hour": 6}),
    Call("Set an alarm for hour 22.", "set_alarm", {"hour": 22}),
)
# `tool_choice`: auto, and a call is what a capable model writes.
WANTED = (
    *FORCED,
    Call("Is it raining in London right now?", "get_weather", {"city": "London"}),
    Call("Please check the weather in Rome for me.", "get_weather", {"city": "Rome"}),
    Call("Do I need an umbrella in Oslo?", "get_weather", {"city": "Oslo"}),
    Call("Use your tool to add 17 and 25.", "add", {"a": 17, "b": 25}),
    Call("Compute 1.5 + 2.5 with the tool.", "add", {"a": 1.5, "b": 2.5}),
    Call("I need the sum of 8 and 9.", "add", {"a": 8, "b": 9}),
    Call("Send an email to max@example.com with the subject Hello.", "send_email"),
    Call("Mail tom@example.com that dinner is ready.", "send_email", {"to": "tom@example.com"}),
    Call("I have to get up at 5 tomorrow. Set my alarm.", "set_alarm", {"hour": 5}),
    Call("Please set the alarm to 8.", "set_alarm", {"hour": 8}),
)
# `tool_choice`: required; which tool is the model's choice.
REQUIRED = (
    Call("What is the weather in Madrid?", "get_weather", {"city": "Madrid"}),
    Call("Tell me the weather in Vienna.", "get_weather", {"city": "Vienna"}),
    Call("How is the weather in New York?", "get_weather", {"city": "New York"}),
    Call("Add 5 and 6.", "add", {"a": 5, "b": 6}),
    Call("Add the numbers 40 and 2.", "add", {"a": 40, "b": 2}),
    Call("Add 0.5 and 0.25.", "add", {"a": 0.5, "b": 0.25}),
    Call("Send an email to eva@example.com.", "send_email", {"to": "eva@example.com"}),
    Call("Send an email to jim@example.net: see you.", "send_email", {"to": "jim@example.net"}),
    Call("Send the email to info@example.org.", "send_email", {"to": "info@example.org"}),
    Call("Set an alarm for hour 9.", "set_alarm", {"hour": 9}),
    Call("Set the alarm for 12 o'clock.", "set_alarm", {"hour": 12}),
    Call("Set an alarm for 23 o'clock.", "set_alarm", {"hour": 23}),
)
# `tool_choice`: auto, and nothing that a tool could do.
UNWANTED = (
    Call("Hello!", ""),
    Call("Tell me a joke.", ""),
    Call("Who wrote Hamlet?", ""),
    Call("Thank you, that was all.", ""),
    Call("What is your name?", ""),
    Call("Write a short poem about the sea.", ""),
)

# One conversation, and what each answer says.
CHAT = (
    ("What is the capital of France?", "Paris"),
    ("And of Italy?", "Rome"),
    ("Which of the two is in Italy?", "Rome"),
    ("Name a fruit that is yellow.", ""),
    ("What color is the sky on a clear day?", "blue"),
    ("Write one sentence about dogs.", "dog"),
    ("How many days does a week have?", ""),
    ("What is the opposite of hot?", "cold"),
    ("Say hello in one word.", ""),
    ("Thank you!", ""),
)


def says(value: Any, expected: Any) -> bool:
    """Whether `value` is as expected; see the module."""
    match expected:
        case str():
            return isinstance(value, str) and expected.lower() in value.lower()
        case Mapping():
            return isinstance(value, dict) and all(
                name in value and says(value[name], inner) for name, inner in expected.items()
            )
        case Sequence():
            return isinstance(value, list) and all(
                any(says(one, inner) for one in value) for inner in expected
            )
        case _:
            return bool(value == expected)


def conversation(answers: Sequence[str]) -> Iterator[dict[str, str]]:
    """The messages of `CHAT` up to the next question, after these answers."""
    for at, (question, _) in enumerate(CHAT[: len(answers) + 1]):
        yield {"role": "user", "content": question}
        if at < len(answers):
            yield {"role": "assistant", "content": answers[at]}
