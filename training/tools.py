"""Tool definitions, the sentences that ask for them, and their results, all drawn at random.

Names of tools and parameters are mostly invented, so the model must read the definition instead of
reciting one. A request matches its tool by a noun that both name. Formats follow OpenAI's
`tools` and the Hermes `<tool_call>`.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any, TypeAlias

import msgspec

from training import words
from training.skills import Exchange

Definition: TypeAlias = dict[str, Any]

NOUNS = (
    "weather", "weather", "weather", "temperature", "time", "population", "forecast", "price",
    "mayor", "address", "distance", "news", "humidity", "opening hours", "phone number",
)  # fmt: skip
TOOL_NAMES = (
    "get_{}", "get_{}", "get_current_{}", "find_{}", "lookup_{}", "{}_lookup", "fetch_{}", "{}",
    "check_{}", "query_{}", "{}_in_city", "show_{}", "{}_service", "read_{}",
)  # fmt: skip
PLACE_PARAMETERS = (
    "city", "city", "location", "place", "name", "town", "city_name", "where", "region", "query",
    "address", "person", "user", "target", "key",
)  # fmt: skip
DESCRIPTIONS = (
    "Get the {n} in a city", "Get the {n} of a {p}", "Get the current {n} for a {p}.",
    "Get the current {n} in a given {p}", "Look up the {n}.", "Returns the {n} of a {p}.",
    "The {n} for a {p}", "Find the {n}", "Get {n}", "Get current {n} for a location.",
    "Look up the {n} of a {p}",
)  # fmt: skip
PARAMETER_DESCRIPTIONS = (
    "The {}", "The {}", "{}", "The name of the {}", "City name",
    "The city and state, e.g. San Francisco, CA", "The city, e.g. Paris",
)  # fmt: skip
PLACE_REQUESTS = (
    "What is the {n} {w} {c}?", "What is the {n} {w} {c}?", "What's the {n} {w} {c}?",
    "What's the {n} {w} {c} today?", "What is the {n} {w} {c} right now?", "the {n} {w} {c}",
    "Tell me the {n} {w} {c}.", "{n} {w} {c}?", "Can you check the {n} {w} {c}?", "{n} {w} {c}",
    "Get the {n} {w} {c}, please.", "How is the {n} {w} {c}?", "I need the {n} {w} {c}.",
    "Please look up the {n} {w} {c}.", "Find the {n} {w} {c}", "Check the {n} {w} {c}.",
    "Hi! What is the {n} {w} {c}?", "Could you tell me the {n} {w} {c}?", "Show me the {n} {w} {c}",
    "How's the {n} {w} {c} today?", "Please tell me the {n} {w} {c}.", "And the {n} {w} {c}?",
    "What is the current {n} {w} {c}?", "What will the {n} be {w} {c} tomorrow?",
)  # fmt: skip
WEATHER_REQUESTS = (
    "Is it raining in {c}?", "Will it rain in {c} today?", "Is it cold in {c}?",
    "How warm is it in {c}?", "Is it sunny in {c}?", "Do I need an umbrella in {c}?",
)  # fmt: skip
TRIP_PARAMETERS = (
    ("origin", "destination"), ("from", "to"), ("start", "end"), ("source", "target"),
    ("from_city", "to_city"), ("departure", "arrival"),
)  # fmt: skip
TRIP_NOUNS = ("train", "flight", "route", "bus", "distance", "ferry", "fare")
TRIP_REQUESTS = (
    "Find a {n} from {a} to {b}.", "What is the {n} from {a} to {b}?",
    "I need a {n} from {a} to {b}", "Show me the {n} from {a} to {b}.",
    "Is there a {n} from {a} to {b}?", "Book a {n} from {a} to {b}, please.",
)  # fmt: skip
SEARCH_NAMES = (
    "search",
    "web_search",
    "search_web",
    "search_notes",
    "find",
    "lookup",
    "query_index",
)
SEARCH_REQUESTS = (
    "Search for {}", "Look up {}", "Search the web for {}", "Please search for {}", "Search {}",
    "Find something about {}", "Can you search for {}?",
)  # fmt: skip
STATE_REQUESTS = (
    "What is the {n}?", "Tell me the {n}.", "What is the {n} now?", "Check the {n}.",
    "Show the {n}, please.", "What's the {n}?",
)  # fmt: skip
ADD_NAMES = ("add", "add_numbers", "sum", "add_two_numbers", "plus", "calculate_sum")
ADD_PARAMETERS = (("a", "b"), ("x", "y"), ("first", "second"), ("num1", "num2"), ("left", "right"))
ADD_REQUESTS = (
    "What is {} + {}?", "What is {} plus {}?", "Add {} and {}.", "{} + {}",
    "How much is {} plus {}?", "Please add {} and {}",
)  # fmt: skip
SKIES = ("sunny", "cloudy", "light rain", "rain", "snow", "windy", "clear sky", "foggy")
UNITS = ("°C", " °C", "°F", " degrees", " km", "%", " C", " EUR", " degrees and sunny", " people")
KEYS = ("temperature", "condition", "unit", "value", "humidity", "wind", "status", "price", "count")


class Answered(msgspec.Struct, frozen=True):
    """A request with the call that serves it. `subject` is what the answer speaks of."""

    request: str
    arguments: dict[str, str | int]
    subject: str


class Tool(msgspec.Struct, frozen=True):
    """A tool as the client defines it, and a maker of requests for it."""

    name: str
    definition: Definition
    ask: Callable[[Random], Answered]


def _define(
    rng: Random, name: str, description: str, parameters: dict[str, str], optional: Definition
) -> Definition:
    properties: dict[str, Definition] = {}
    for parameter, kind in parameters.items():
        properties[parameter] = {"type": kind}
        if rng.random() < 0.15:
            meaning = rng.choice(PARAMETER_DESCRIPTIONS).format(parameter.replace("_", " "))
            properties[parameter]["description"] = meaning
    schema: Definition = {"type": "object", "properties": properties | optional}
    if rng.random() < 0.85:
        schema["required"] = list(parameters)
    if rng.random() < 0.1:
        schema["additionalProperties"] = False
    function: Definition = {"name": name, "description": description, "parameters": schema}
    if rng.random() < 0.1:
        del function["description"]
    return {"type": "function", "function": function}


def _noun(rng: Random) -> str:
    return rng.choice(NOUNS) if rng.random() < 0.5 else words.random_word(rng)


def _parameter(rng: Random) -> str:
    if rng.random() < 0.6:
        return rng.choice(PLACE_PARAMETERS)
    word = words.random_word(rng)
    return word if rng.random() < 0.7 else f"{word}_{words.random_word(rng)}"


def _named(rng: Random, noun: str) -> str:
    """A tool name that contains the noun, or in one of five cases says nothing."""
    if rng.random() < 0.2:
        word = words.random_word(rng)
        return word if rng.random() < 0.5 else f"{word}_{words.random_word(rng)}"
    if rng.random() < 0.15:
        return "get" + noun.title().replace(" ", "")
    return rng.choice(TOOL_NAMES).format(noun.replace(" ", "_"))


def plain_tool(rng: Random) -> Tool:
    """A `place_tool` with a common noun, a name that holds it and a common parameter."""
    noun = rng.choice(NOUNS)
    name = rng.choice(TOOL_NAMES).format(noun.replace(" ", "_"))
    return _place_tool(rng, noun, name, rng.choice(PLACE_PARAMETERS))


def place_tool(rng: Random) -> Tool:
    """One text argument copied from the request: `get_weather(city)` and its like."""
    noun, parameter = _noun(rng), _parameter(rng)
    return _place_tool(rng, noun, _named(rng, noun), parameter)


def _place_tool(rng: Random, noun: str, name: str, parameter: str) -> Tool:
    described = rng.choice(DESCRIPTIONS).format(n=noun, p=parameter.replace("_", " "))
    optional: Definition = {}
    if rng.random() < 0.12:
        optional = {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}
    definition = _define(rng, name, described, {parameter: "string"}, optional)

    def ask(rng: Random) -> Answered:
        subject_place, link = words.place(rng), rng.choice(("in", "in", "in", "for", "of"))
        form, link = (
            (rng.choice(WEATHER_REQUESTS), "in")
            if noun == "weather" and rng.random() < 0.2
            else (rng.choice(PLACE_REQUESTS), link)
        )
        arguments: dict[str, str | int] = {parameter: subject_place}
        request = form.format(n=noun, w=link, c=subject_place)
        if optional and rng.random() < 0.4:
            unit = rng.choice(("celsius", "fahrenheit"))
            request = f"{request.rstrip('.?')} in {unit}?"
            arguments["unit"] = unit
        return Answered(request, arguments, f"The {noun} {link} {subject_place}")

    return Tool(name, definition, ask)


def trip_tool(rng: Random) -> Tool:
    """Two text arguments: `find_train(origin, destination)`."""
    noun = rng.choice(TRIP_NOUNS) if rng.random() < 0.6 else words.random_word(rng)
    first, second = rng.choice(TRIP_PARAMETERS)
    if rng.random() < 0.3:
        first, second = words.random_word(rng), words.random_word(rng)
    name = _named(rng, noun)
    described = rng.choice((f"Find a {noun} between two cities", f"Get the {noun} from A to B"))
    definition = _define(rng, name, described, {first: "string", second: "string"}, {})

    def ask(rng: Random) -> Answered:
        start, end = words.place(rng), words.place(rng)
        request = rng.choice(TRIP_REQUESTS).format(n=noun, a=start, b=end)
        return Answered(request, {first: start, second: end}, f"The {noun} from {start} to {end}")

    return Tool(name, definition, ask)


def search_tool(rng: Random) -> Tool:
    """One argument of several words: `search(query)`."""
    name = rng.choice(SEARCH_NAMES)
    parameter = rng.choice(("query", "query", "q", "text", "terms", words.random_word(rng)))
    described = rng.choice(("Search the web", "Search for text", "Search the notes.", "Web search"))
    definition = _define(rng, name, described, {parameter: "string"}, {})

    def ask(rng: Random) -> Answered:
        sought = " ".join(words.copied_word(rng) for _ in range(rng.randint(1, 4)))
        return Answered(
            rng.choice(SEARCH_REQUESTS).format(sought), {parameter: sought}, "The result"
        )

    return Tool(name, definition, ask)


def state_tool(rng: Random) -> Tool:
    """No argument: `get_status()`."""
    noun = rng.choice(("status", "time", "date", "version")) if rng.random() < 0.5 else _noun(rng)
    name = _named(rng, noun)
    definition = _define(rng, name, f"Get the {noun}. Takes no arguments.", {}, {})

    def ask(rng: Random) -> Answered:
        return Answered(rng.choice(STATE_REQUESTS).format(n=noun), {}, f"The {noun}")

    return Tool(name, definition, ask)


def add_tool(rng: Random) -> Tool:
    """Two numbers: `add(a, b)`."""
    name = rng.choice(ADD_NAMES)
    first, second = rng.choice(ADD_PARAMETERS)
    kind = rng.choice(("integer", "integer", "number"))
    described = rng.choice(("Add two numbers", "Add two numbers.", "Adds two integers", "Sum"))
    definition = _define(rng, name, described, {first: kind, second: kind}, {})

    def ask(rng: Random) -> Answered:
        one, two = int(words.number(rng)), int(words.number(rng))
        request = rng.choice(ADD_REQUESTS).format(one, two)
        return Answered(request, {first: one, second: two}, "The result")

    return Tool(name, definition, ask)


MAKERS = {place_tool: 70, trip_tool: 11, search_tool: 6, state_tool: 7, add_tool: 6}
PLAIN_MAKERS = {plain_tool: 90, search_tool: 10}


def draw_tools(rng: Random, plain_share: float = 0.0) -> list[Tool]:
    """One to three tools that no request confuses: names and nouns differ.

    `plain_share`: how often all are of the kind that people define, `get_weather` beside
    `find_population`: easier to tell apart than invented ones, so choosing is learnt from them.
    """
    plain = rng.random() < plain_share
    makers = PLAIN_MAKERS if plain else MAKERS
    wanted = rng.choices((1, 2, 3), (20, 45, 35) if plain else (50, 30, 20))[0]
    tools: list[Tool] = []
    while len(tools) < wanted:
        tool = rng.choices(list(makers), list(makers.values()))[0](rng)
        taken = {word for other in tools for word in _vocabulary(other)}
        if taken.isdisjoint(_vocabulary(tool)):
            tools.append(tool)
    return tools


def _vocabulary(tool: Tool) -> set[str]:
    """The maker and the noun of a tool: what two tools of one conversation must not share."""
    subject = tool.ask(Random(0)).subject
    return {
        tool.name,
        subject.split(" from ")[0].split(" in ")[0].split(" for ")[0].split(" of ")[0],
    }


def _value(rng: Random) -> str | int | float:
    kind = rng.random()
    if kind < 0.25:
        return rng.randint(-20, 400)
    if kind < 0.35:
        return round(rng.uniform(-20, 120), 1)
    if kind < 0.6:
        return f"{rng.randint(-9, 99)}{rng.choice(UNITS)}"
    if kind < 0.8:
        return rng.choice(SKIES)
    return " ".join(words.copied_word(rng) for _ in range(rng.randint(1, 3)))


def _result(rng: Random, answered: Answered) -> tuple[str, str]:
    """What the tool returns, and how the model tells it."""
    if rng.random() < 0.4:
        value = str(_value(rng))
        return value, f"{answered.subject} is {value}."
    count = rng.choice((1, 1, 2, 2, 3))
    keys = [
        rng.choice(KEYS) if rng.random() < 0.6 else words.random_word(rng) for _ in range(count)
    ]
    fields: dict[str, str | int | float] = {key: _value(rng) for key in keys}
    facts = ", ".join(f"{key} {value}" for key, value in fields.items())
    if rng.random() < 0.25:
        fields = {**answered.arguments, **fields}
        facts = ", ".join(f"{key} {value}" for key, value in fields.items())
    return json.dumps(fields, ensure_ascii=False), f"{answered.subject}: {facts}."


def call_text(name: str, arguments: dict[str, str | int]) -> str:
    """A Hermes tool call, exactly as the chat template writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def use(rng: Random, tool: Tool) -> tuple[Exchange, Exchange]:
    """A request with its call, and the tool's result with the answer."""
    answered = tool.ask(rng)
    call = call_text(tool.name, answered.arguments)
    result, answer = _result(rng, answered)
    return (
        Exchange(answered.request, f"I can look that up with {tool.name}.", call),
        Exchange(result, "The tool has answered.", answer, role="tool"),
    )
