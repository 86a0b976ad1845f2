"""`roundhouse launch AGENT`: runs a coding agent that is installed here on a model of the server,
with the settings that this program needs, for this run alone: no file of its own is changed.
"""

import json
import os
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.cli import CommandFailed
from gateway.cli.arguments import AGENTS
from gateway.cli.remote import Remote

KEY = "ROUNDHOUSE_KEY"
NO_KEY = "none"  # agents refuse to start without one
SHORT_CONTEXT = 32_768  # tokens; an agent's instructions and tools take some 20,000


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where an agent finds its model. `context`: tokens; None: not known."""

    url: str
    key: str
    model: str
    context: int | None = None

    @property
    def api(self) -> str:
        """What OpenAI's clients take."""
        return f"{self.url}/v1"


class Settings(msgspec.Struct, frozen=True):
    """What a program is given: variables of its environment, and arguments before the user's."""

    variables: Mapping[str, str]
    arguments: Sequence[str] = ()


def claude(place: Place) -> Settings:
    """https://code.claude.com/docs/en/env-vars. A key of Anthropic's would be taken first."""
    # Without them it takes any model for one of 200,000 tokens, and compacts too late.
    sizes = ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW")
    kinds = ("MODEL", "SMALL_FAST_MODEL", *(f"DEFAULT_{size}_MODEL" for size in _SIZES))
    return Settings(
        {
            "ANTHROPIC_BASE_URL": place.url,
            "ANTHROPIC_AUTH_TOKEN": place.key,
            "ANTHROPIC_API_KEY": "",
            **{f"ANTHROPIC_{kind}": place.model for kind in kinds},
            **(dict.fromkeys(sizes, str(place.context)) if place.context else {}),
        }
    )


_SIZES = ("OPUS", "SONNET", "HAIKU")


def codex(place: Place) -> Settings:
    """`-c` is a line of its config.toml: https://developers.openai.com/codex/config-reference."""
    provider = {
        "name": "Roundhouse",
        "base_url": place.api,
        "env_key": KEY,
        "wire_api": "responses",
    }
    lines = {
        "model": place.model,
        "model_provider": "roundhouse",
        **{f"model_providers.roundhouse.{name}": value for name, value in provider.items()},
    }
    options = [f"{name}={json.dumps(value)}" for name, value in lines.items()]
    if place.context is not None:
        options.append(f"model_context_window={place.context}")
    return Settings({KEY: place.key}, [word for option in options for word in ("-c", option)])


def opencode(place: Place) -> Settings:
    """https://opencode.ai/docs/config: this variable goes over all files."""
    limit = {"context": place.context, "output": place.context // 4} if place.context else None
    model = {"name": place.model} | ({"limit": limit} if limit else {})
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Roundhouse",
        "options": {"baseURL": place.api, "apiKey": f"{{env:{KEY}}}"},
        "models": {place.model: model},
    }
    named = f"roundhouse/{place.model}"
    config = {"provider": {"roundhouse": provider}, "model": named, "small_model": named}
    text = json.dumps(config, separators=(",", ":"))
    return Settings({KEY: place.key, "OPENCODE_CONFIG_CONTENT": text})


def aider(place: Place) -> Settings:
    """https://aider.chat/docs/llms/openai-compat.html."""
    return Settings(
        {"OPENAI_API_BASE": place.api, "OPENAI_API_KEY": place.key},
        ["--model", f"openai/{place.model}"],
    )


def qwen(place: Place) -> Settings:
    """https://qwenlm.github.io/qwen-code-docs/en/users/configuration/auth."""
    return Settings(
        {
            "OPENAI_BASE_URL": place.api,
            "OPENAI_API_KEY": place.key,
            "OPENAI_MODEL": place.model,
        }
    )


def goose(place: Place) -> Settings:
    """https://block.github.io/goose/docs/getting-started/providers."""
    return Settings(
        {
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": place.model,
            "OPENAI_HOST": place.url,
            "OPENAI_API_KEY": place.key,
        }
    )


def llm(place: Place) -> Settings:
    """https://llm.datasette.io/en/stable/openai-models.html: no variable holds the address."""
    key = [] if place.key == NO_KEY else ["--key", place.key]
    return Settings({}, ["openai", "endpoint", place.api, "-m", place.model, *key])


_AGENTS = (claude, codex, opencode, aider, qwen, goose, llm)
_SETTINGS: Mapping[str, Callable[[Place], Settings]] = {agent.__name__: agent for agent in _AGENTS}


def run(arguments: Namespace) -> int:
    """Becomes the agent; with `--print` only says how. Raises CommandFailed."""
    with Remote(arguments.url, arguments.key) as remote:
        card = chosen(remote.get("/v1/models", "data")["data"], arguments.model)
    context = card.get("context_length")
    place = Place(url=arguments.url, key=arguments.key or NO_KEY, model=card["id"], context=context)
    settings = _SETTINGS[arguments.agent](place)
    words = [arguments.agent, *settings.arguments, *arguments.arguments]
    if context is not None and context < SHORT_CONTEXT:
        text = f"{place.model} has a context of {context:,} tokens; agents need {SHORT_CONTEXT:,}"
        print(f"roundhouse: {text} or more (context_length)", file=sys.stderr)
    if arguments.print:
        for name, value in settings.variables.items():
            print(f"export {name}={shlex.quote(value)}")
        print(shlex.join(words))
        return 0
    if shutil.which(arguments.agent) is None:
        hint = AGENTS[arguments.agent]
        raise CommandFailed(f"{arguments.agent} is not installed; install it with `{hint}`")
    sys.stdout.flush()
    os.execvpe(arguments.agent, words, {**os.environ, **settings.variables})  # noqa: S606 - asked for
    raise AssertionError("this process is the agent now")


def chosen(cards: Sequence[Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
    """The model called `name`; without a name the first that writes text, since lists begin with
    what is in use. Raises CommandFailed.
    """
    writing = [card for card in cards if not _ENCODERS & {*(card.get("capabilities") or ())}]
    if name is not None:
        writing = [card for card in writing if name in (card["id"], *card.get("aliases", ()))]
    if writing:
        return writing[0]
    known = ", ".join(str(card["id"]) for card in cards) or "none"
    problem = "the server has no model that writes text" if name is None else f"no model {name!r}"
    raise CommandFailed(f"{problem}; the server's models: {known}")


_ENCODERS = {"embedding", "rerank"}
