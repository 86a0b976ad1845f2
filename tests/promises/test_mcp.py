"""Tools of MCP servers, run by `roundhouse serve` for a model: over each API, with the clients that
people use, and a real MCP server over a real socket.
"""

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import psutil
import pytest

import bundled
from tests.gateway.prompt.families import source
from tests.served import ROOT, Serve, Served, served

# The conversation as it is, so that a line of the script can wait for a result.
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
    "{% endfor %}{% if tools %}TOOLS {{ tools | length }}{% endif %}"
)


def calling(name: str, **arguments: Any) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


LINES = [
    {"when": "<tool_response>\nRain in Oslo.", "say": "Take an umbrella."},
    {"when": "<tool_response>\n5", "say": "It is five."},
    {"when": "<tool_response>\nError executing tool fail", "say": "It failed."},
    {"when": "did not allow", "say": "Then not."},
    {"when": "for ever", "say": "Again." + calling("honest__add", a=2, b=2)},
    {"when": "Do both", "say": calling("honest__add", a=2, b=3) + calling("own", x=1)},
    {"when": "Please add", "say": "Let me see. " + calling("honest__add", a=2, b=3)},
    {"when": "Wait for me", "say": "Yes." + calling("honest__wait", seconds=3600)},
    {"when": "How many", "say": calling("honest__waits")},
    {"when": "Please write", "say": calling("honest__long", letters=20_000)},
    {"when": "Please fail", "say": calling("honest__fail")},
    {"when": "The weather", "say": calling("honest__weather", city="Oslo")},
    {"when": "", "say": "Hello."},
]
# A call is streamed while it is written, and its tool runs once for it.
MCP: Any = {"type": "mcp", "server_label": "honest", "require_approval": "never"}


@contextmanager
def listening(transport: str) -> Iterator[str]:
    """The honest server over HTTP: its URL."""
    command = [sys.executable, "-m", "tests.mcp_servers.honest", transport]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def script(folder: Path, name: str, lines: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    path = folder / f"{name}.script.json"
    path.write_text(json.dumps({"lines": lines, "chat_template": TEMPLATE, **more}))
    return {"name": name, "path": str(path), "format": "hermes_json"}


urls: dict[str, str] = {}  # of the honest server, by that of ours
KEYS = [
    {"key": "mine", "label": "mine"},
    {"key": "yours", "label": "yours"},
]


# websockets of 2026 warns of how OpenAI's client connects.
pytestmark = pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("mcp")
    with listening("streamable-http") as url:
        honest = {
            "name": "honest",
            "url": url,
            "allow_private_addresses": True,
            "keys": ["mine"],
            "require_approval": ["weather"],
            "tools": ["add", "fail", "long", "wait", "waits", "weather"],
        }
        model = script(folder, "caller", LINES)
        always = {"name": "always", "of": "caller", "mcp": ["honest"]}
        short = script(folder, "short", LINES, context_length=4_096)
        config = {
            "models": [model, always, short],
            "mcp": [honest],
            "keys": KEYS,
            "server": {"max_tool_rounds": 3},
        }
        with served(folder, config) as running:
            urls[running.url] = url
            yield running


def client(server: Served, key: str = "mine") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key)


def test_a_response_runs_a_tool_and_goes_on(server: Served) -> None:
    with client(server) as api:
        answer = api.responses.create(model="caller", input="Please add.", tools=[MCP])
    assert [item.type for item in answer.output] == [
        "mcp_list_tools",
        "message",
        "mcp_call",
        "message",
    ]
    listed, _, call, _ = answer.output
    assert listed.type == "mcp_list_tools"
    named = [tool.name for tool in listed.tools]
    assert named == ["add", "weather", "fail", "wait", "waits", "long"]
    assert call.type == "mcp_call"
    assert (call.name, json.loads(call.arguments), call.output) == ("add", {"a": 2, "b": 3}, "5")
    assert (call.status, call.error, call.server_label) == ("completed", None, "honest")
    assert answer.output_text == "Let me see.It is five."
    assert answer.status == "completed"
    assert answer.usage is not None
    assert answer.usage.input_tokens > 2 * len("[user] Please add.")  # of both rounds


def test_the_events_of_a_stream_are_the_official_ones(server: Served) -> None:
    with (
        client(server) as api,
        api.responses.stream(model="caller", input="Please add.", tools=[MCP]) as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    told = [kind.removeprefix("response.") for kind in kinds if "mcp" in kind]
    assert list(dict.fromkeys(told)) == [
        "mcp_list_tools.in_progress",
        "mcp_list_tools.completed",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
    ]
    assert told.count("mcp_call.completed") == 1
    assert final.output_text == "Let me see.It is five."
    assert [item.type for item in final.output].count("mcp_call") == 1


def test_a_tool_that_fails_is_an_error_that_the_model_reads(server: Served) -> None:
    with client(server) as api:
        answer = api.responses.create(model="caller", input="Please fail.", tools=[MCP])
    call = next(item for item in answer.output if item.type == "mcp_call")
    assert call.status == "failed"
    assert call.output is None
    assert "Error executing tool fail" in json.dumps(call.to_dict()["error"])
    assert answer.output_text == "It failed."


def test_a_call_waits_for_its_users_approval(server: Served) -> None:
    asked: Any = {"type": "mcp", "server_label": "honest", "require_approval": "never"}
    with client(server) as api:
        first = api.responses.create(model="caller", input="The weather?", tools=[asked])
        request = first.output[-1]
        assert request.type == "mcp_approval_request"
        assert json.loads(request.arguments) == {"city": "Oslo"}
        answer: Any = {
            "type": "mcp_approval_response",
            "approval_request_id": request.id,
            "approve": True,
        }
        allowed = api.responses.create(
            model="caller", input=[answer], previous_response_id=first.id, tools=[asked]
        )
        call = allowed.output[0]
        assert call.type == "mcp_call"
        assert (call.approval_request_id, call.output) == (request.id, "Rain in Oslo.")
        assert allowed.output_text == "Take an umbrella."
        later = api.responses.create(
            model="caller", input="Thanks.", previous_response_id=allowed.id, tools=[asked]
        )
        assert [item.type for item in later.output] == ["message"]  # it is not run again
        refused = api.responses.create(
            model="caller",
            input=[answer | {"approve": False, "reason": "No."}],
            previous_response_id=first.id,
            tools=[asked],
        )
        assert refused.output_text == "Then not."


def test_an_approval_of_what_nobody_asked_for_is_refused(server: Served) -> None:
    answer: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": "mcpr_x",
        "approve": True,
    }
    with client(server) as api, pytest.raises(openai.BadRequestError) as raised:
        api.responses.create(model="caller", input=[answer], tools=[MCP])
    assert raised.value.param == "input[0].approval_request_id"


def test_the_clients_own_tools_go_back_to_it_beside_those_that_ran(server: Served) -> None:
    own: Any = {"type": "function", "name": "own", "parameters": {"type": "object"}}
    with client(server) as api:
        answer = api.responses.create(model="caller", input="Do both", tools=[MCP, own])
    kinds = [item.type for item in answer.output]
    assert kinds == ["mcp_list_tools", "mcp_call", "function_call"]
    call = answer.output[1]
    assert call.type == "mcp_call"
    assert call.output == "5"


def test_rounds_are_bounded(server: Served) -> None:
    with client(server) as api:
        answer = api.responses.create(model="caller", input="for ever", tools=[MCP])
    assert [item.type for item in answer.output].count("mcp_call") <= 4
    assert answer.status == "completed"


def test_calls_are_bounded_by_the_request(server: Served) -> None:
    with client(server) as api:
        said: Any = {"model": "caller", "input": "for ever", "tools": [MCP]}
        answer = api.responses.create(**said, max_tool_calls=2)
        found = api.responses.create(**said, max_tool_calls=1, stream=True)
        streamed = [event.item for event in found if event.type == "response.output_item.done"]
    assert [item.type for item in answer.output].count("mcp_call") == 2
    assert answer.status == "completed"
    assert [item.type for item in streamed].count("mcp_call") == 1


def until_waits_are(server: Served, count: int) -> None:
    """The server of tools says so: it is asked beside what runs."""
    said = ""
    while said != f"{count} under way":
        with client(server) as api:
            answer = api.responses.create(model="caller", input="How many?", tools=[MCP])
        said = next(str(item.output) for item in answer.output if item.type == "mcp_call")


def left(server: Served, request: str) -> None:
    """The request's line says so, and its tool was told."""
    line = server.log.wait_for("request", lambda record: record["request"] == request)
    assert line["outcome"] == "left"
    until_waits_are(server, 0)


@pytest.mark.slow
def test_who_leaves_while_a_tool_runs_ends_it(server: Served) -> None:
    """Over HTTP, and over a socket that is closed in the middle."""
    asked: Any = {"model": "caller", "input": "Wait for me", "tools": [MCP]}
    with client(server) as api:
        with api.responses.create(**asked, stream=True) as stream:
            next(event for event in stream if event.type == "response.mcp_call_arguments.done")
            request = stream.response.headers["x-request-id"]
            until_waits_are(server, 1)
        left(server, request)
        with api.responses.connect() as talk:
            begun: Any = {"type": "response.create", **asked}
            talk.send(begun)
            request = next(iter(talk)).to_dict()["headers"]["x-request-id"]  # type: ignore[index]
            until_waits_are(server, 1)
        left(server, request)


def test_a_result_that_no_longer_fits_ends_the_answer_as_too_long(server: Served) -> None:
    asked: Any = {"model": "short", "input": "Please write.", "tools": [MCP]}
    with client(server) as api:
        answer = api.responses.create(**asked)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    call = next(item for item in answer.output if item.type == "mcp_call")
    assert len(str(call.output)) == 20_000  # what was done is told


def test_the_inspector_shows_each_round(server: Served) -> None:
    mine = {"authorization": "Bearer mine"}
    asked: Any = {"model": "caller", "input": "Please add.", "tools": [MCP]}
    answer = server.client.post("/v1/responses", json=asked, headers=mine)
    name = answer.headers["x-request-id"]
    seen = server.client.get(f"/v1/admin/requests/{name}", headers=mine).json()
    first, second = seen["prompts"]
    assert "5" not in first["text"]
    assert "<tool_response>\n5" in second["text"]
    assert [one["prompt"] for one in seen["answers"]] == [0, 1]
    assert [part["text"] for part in seen["answers"][1]["parts"]] == ["It is five."]


def test_background_and_stored_responses_have_them(server: Served) -> None:
    with client(server) as api:
        begun = api.responses.create(
            model="caller", input="Please add.", tools=[MCP], background=True, stream=True
        )
        with begun as stream:
            ended = [event for event in stream if event.type == "response.completed"]
        name = ended[0].response.id
        kept = api.responses.retrieve(name)
        assert kept.output_text == "Let me see.It is five."
        again = api.responses.create(
            model="caller", input="Hi", previous_response_id=name, tools=[MCP]
        )
    assert "mcp_list_tools" not in [item.type for item in again.output]


def test_a_key_has_only_the_servers_that_it_may_use(server: Served) -> None:
    with client(server, "yours") as api, pytest.raises(openai.BadRequestError) as raised:
        api.responses.create(model="caller", input="Please add.", tools=[MCP])
    assert raised.value.param == "tools[0].server_label"
    with client(server, "yours") as api:  # and the model that always has them, without them
        answer = api.chat.completions.create(
            model="always", messages=[{"role": "user", "content": "Hi"}]
        )
    assert answer.choices[0].message.content == "Hello."


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"server_label": "other"}, "tools[0].server_label"),
        ({"server_label": ""}, "tools[0].server_label"),
        ({"server_label": "x", "server_url": "http://10.0.0.1/mcp"}, "tools[0].server_url"),
        ({"server_label": "x", "connector_id": "connector_gmail"}, "tools[0].connector_id"),
        ({"server_label": "honest", "allowed_tools": 7}, "tools[0].allowed_tools"),
    ],
)
def test_what_is_not_there_is_an_error_that_names_the_field(
    server: Served, tool: Any, param: str
) -> None:
    with client(server) as api, pytest.raises(openai.BadRequestError) as raised:
        api.responses.create(model="caller", input="Hi", tools=[tool | {"type": "mcp"}])
    assert str(raised.value.param).removeprefix("$.") == param


def test_a_tool_can_be_demanded(server: Served) -> None:
    choice: Any = {"type": "mcp", "server_label": "honest", "name": "add"}
    with client(server) as api:
        answer = api.responses.create(
            model="caller", input="Please add.", tools=[MCP], tool_choice=choice
        )
        assert answer.output_text.endswith("It is five.")
        with pytest.raises(openai.BadRequestError) as raised:
            api.responses.create(
                model="caller",
                input="Hi",
                tools=[MCP | {"allowed_tools": ["fail"]}],
                tool_choice=choice,
            )
    assert raised.value.param == "tool_choice"


ASK: Any = {"model": "caller", "messages": [{"role": "user", "content": "Please add."}]}


def test_chat_completions_run_them_within_one_answer(server: Served) -> None:
    with client(server) as api:
        answer = api.chat.completions.create(**ASK, tools=[MCP])
        choice = answer.choices[0]
        assert choice.message.content == "Let me see.It is five."
        assert choice.finish_reason == "stop"
        assert choice.message.tool_calls is None  # there is nothing for the client to run
        (ran,) = choice.message.to_dict()["executed_tools"]
        assert ran["output"] == "5"
        assert (ran["type"], ran["server_label"], ran["name"]) == ("mcp", "honest", "add")
        chunks = list(api.chat.completions.create(**ASK, tools=[MCP], stream=True))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "Let me see.It is five."
    executed = [each for chunk in chunks for each in executed_in(chunk)]
    assert [each["output"] for each in executed] == ["5"]
    assert chunks[-1].choices[0].finish_reason == "stop"


def executed_in(chunk: Any) -> list[Any]:
    return [
        tool
        for choice in chunk.to_dict()["choices"]
        for tool in choice["delta"].get("executed_tools", ())
    ]


def test_a_tool_that_waits_for_approval_is_left_out_where_none_can_be_asked_for(
    server: Served,
) -> None:
    with client(server) as api:
        answer = api.chat.completions.with_raw_response.create(**ASK, tools=[MCP])
    assert answer.headers["x-roundhouse-ignored"] == "tools[0].weather"


def test_several_choices_are_refused(server: Served) -> None:
    with client(server) as api, pytest.raises(openai.BadRequestError) as raised:
        api.chat.completions.create(**ASK, tools=[MCP], n=2)
    assert raised.value.param == "n"


def test_a_model_always_has_the_tools_of_its_servers_over_any_api(server: Served) -> None:
    with client(server) as api:
        answer = api.chat.completions.create(**{**ASK, "model": "always"})
        assert answer.choices[0].message.content == "Let me see.It is five."
        response = api.responses.create(model="always", input="Please add.")
        assert response.output_text == "Let me see.It is five."
    mine = {"authorization": "Bearer mine"}
    asked = {**ASK, "model": "always", "stream": False}
    told = server.client.post("/api/chat", json=asked, headers=mine).json()["message"]
    assert told["content"] == "Let me see.It is five."
    assert "tool_calls" not in told


def anthropic_client(server: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="mine")


CLAUDE: Any = {
    "model": "caller",
    "max_tokens": 900,
    "messages": [{"role": "user", "content": "Please add."}],
    "betas": ["mcp-client-2025-11-20"],
}
TOOLSET: Any = {"type": "mcp_toolset", "mcp_server_name": "honest"}


def test_messages_have_blocks_of_what_ran(server: Served) -> None:
    servers: Any = [{"type": "url", "name": "honest", "url": urls[server.url]}]
    with anthropic_client(server) as api:
        whole = api.beta.messages.create(**CLAUDE, mcp_servers=servers, tools=[TOOLSET])
        kinds = [block.type for block in whole.content]
        assert kinds == ["text", "mcp_tool_use", "mcp_tool_result", "text"]
        use, result = whole.content[1], whole.content[2]
        assert use.type == "mcp_tool_use"
        assert (use.name, use.server_name, use.input) == ("add", "honest", {"a": 2, "b": 3})
        assert result.type == "mcp_tool_result"
        assert (result.tool_use_id, result.is_error) == (use.id, False)
        assert result.to_dict()["content"] == [{"type": "text", "text": "5"}]
        assert whole.stop_reason == "end_turn"
        with api.beta.messages.stream(**CLAUDE, mcp_servers=servers) as stream:
            streamed = stream.get_final_message()
        assert [block.type for block in streamed.content] == kinds
        assert streamed.content[1].to_dict()["input"] == {"a": 2, "b": 3}
        history: Any = [
            *CLAUDE["messages"],
            {"role": "assistant", "content": [block.to_dict() for block in whole.content]},
            {"role": "user", "content": "Hi"},
        ]
        later = api.beta.messages.create(**CLAUDE | {"messages": history}, tools=[TOOLSET])
        assert later.stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/responses/input_tokens", {"input": "Hi", "tools": [MCP]}),
        ("/v1/chat/completions/input_tokens", {**ASK, "tools": [MCP]}),
        ("/v1/messages/count_tokens", {"messages": ASK["messages"], "tools": [TOOLSET]}),
    ],
)
def test_their_tools_are_counted_where_tokens_are(server: Served, path: str, asked: Any) -> None:
    def counted(body: Any) -> int:
        answer = server.client.post(path, json=body, headers={"authorization": "Bearer mine"})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["input_tokens"])

    alone = counted({**asked, "model": "caller", "tools": []})
    assert counted({**asked, "model": "caller"}) > alone
    assert counted({**asked, "model": "always", "tools": []}) > alone


def test_a_toolset_says_which_tools_are_wanted(server: Served) -> None:
    off = TOOLSET | {"default_config": {"enabled": False}, "configs": {"fail": {"enabled": True}}}
    with anthropic_client(server) as api:
        whole = api.beta.messages.create(**CLAUDE, tools=[off])
    used = {block.name for block in whole.content if block.type == "mcp_tool_use"}
    assert used <= {"fail"}  # whatever the model wants to write: it is held to its tools


def test_a_server_that_is_not_there_is_an_error_that_names_the_field(server: Served) -> None:
    servers: Any = [{"type": "url", "name": "x", "url": "https://evil.example/mcp"}]
    with anthropic_client(server) as api:
        with pytest.raises(anthropic.BadRequestError) as raised:
            api.beta.messages.create(**CLAUDE, mcp_servers=servers)
        assert "mcp_servers[0].url" in str(raised.value)
        with pytest.raises(anthropic.BadRequestError) as raised:
            api.beta.messages.create(**CLAUDE, tools=[TOOLSET | {"mcp_server_name": "y"}])
        assert "tools[0].mcp_server_name" in str(raised.value)


def test_a_real_engine_calls_a_commands_tool(tmp_path: Path, serve: Serve) -> None:
    """The bundled model is made to call; its server is a process below this one."""
    command = shlex.join((sys.executable, "-m", "tests.mcp_servers.hostile", "none"))
    config = {
        "models": [{"name": "tiny", "path": str(bundled.GGUF)}],
        "mcp": [{"name": "near", "command": command, "folder": str(ROOT), "tools": ["call"]}],
    }
    server = serve(config)
    near: Any = {"type": "mcp", "server_label": "near", "require_approval": "never"}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as api:
        answer = api.responses.create(
            model="tiny",
            input="Call the tool.",
            tools=[near],
            tool_choice={"type": "mcp", "server_label": "near", "name": "call"},
            max_output_tokens=400,
            temperature=0,
        )
    call = next(item for item in answer.output if item.type == "mcp_call")
    assert (call.name, call.output, call.status) == ("call", "fine", "completed")
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert any("hostile" in " ".join(child.cmdline()) for child in children)
    assert server.stop() == 0
    assert not any(child.is_running() for child in children)
    assert tmp_path.exists()


def test_a_reload_changes_what_is_allowed(tmp_path: Path, serve: Serve) -> None:
    command = shlex.join((sys.executable, "-m", "tests.mcp_servers.hostile", "none"))
    entry = {"name": "near", "command": command, "folder": str(ROOT)}
    model = script(tmp_path, "caller", [{"when": "", "say": "Hello."}])
    server = serve({"models": [model], "mcp": [entry]})
    asked = {
        "model": "caller",
        "input": "Hi",
        "tools": [{"type": "mcp", "server_label": "near", "require_approval": "never"}],
    }
    assert server.client.post("/v1/responses", json=asked).status_code == 200
    file = tmp_path / "roundhouse.yaml"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "mcp": []}))
    server.signal(signal.SIGHUP)
    server.log.wait_for("config")
    told = server.client.post("/v1/responses", json=asked)
    while told.status_code == 200:  # the signal is handled beside requests
        told = server.client.post("/v1/responses", json=asked)
    assert told.json()["error"]["param"] == "tools[0].server_label"


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        ("seeing", "picture", "I see 1x1 #"),
        ("seeing", "broken picture", "I see ."),
        ("blind", "picture", "I see ."),
    ],
)
def test_pictures_reach_models_that_see(
    tmp_path: Path, serve: Serve, model: str, kind: str, said: str
) -> None:
    """Others read what they are, and so does who can't be shown one that is broken."""
    lines = [
        {"when": "(image: image/png)", "say": "I see {images}."},
        {"when": "", "say": calling("near__call")},
    ]
    command = shlex.join((sys.executable, "-m", "tests.mcp_servers.hostile", *kind.split()))
    shows = source("vision")
    models = [
        script(tmp_path, "seeing", lines, modalities=["text", "image"], chat_template=shows),
        script(tmp_path, "blind", lines),
    ]
    near = {"name": "near", "command": command, "folder": str(ROOT)}
    server = serve({"models": models, "mcp": [near]})
    tool = {"type": "mcp", "server_label": "near", "require_approval": "never"}
    asked = {"model": model, "input": "Look.", "tools": [tool]}
    answer = server.client.post("/v1/responses", json=asked).json()
    _, call, message = answer["output"]
    assert call["output"] == "(image: image/png)"
    assert message["content"][0]["text"].startswith(said)


def test_tools_that_are_left_out_are_named(tmp_path: Path, serve: Serve) -> None:
    """The others of their server run."""
    words = (sys.executable, "-m", "tests.mcp_servers.hostile", "malformed tools")
    near = {"name": "near", "command": shlex.join(words), "folder": str(ROOT), "max_tools": 6}
    model = script(tmp_path, "caller", [{"when": "", "say": "Hello."}])
    server = serve({"models": [model], "mcp": [near]})
    tool = {"type": "mcp", "server_label": "near", "require_approval": "never"}
    asked = {"model": "caller", "input": "Hi", "tools": [tool]}
    answer = server.client.post("/v1/responses", json=asked)
    listed = answer.json()["output"][0]
    assert [tool["name"] for tool in listed["tools"]][:2] == ["whole", "missing"]
    ignored = answer.headers["x-roundhouse-ignored"]
    assert ignored == "tools[0].number, tools[0].hopeless, tools[0]."


def test_a_server_that_fails_is_said(tmp_path: Path, serve: Serve) -> None:
    model = script(tmp_path, "caller", [{"when": "", "say": "Hello."}])
    broken = {"name": "broken", "command": "/nowhere/at/all"}
    server = serve({"models": [{**model, "mcp": ["broken"]}], "mcp": [broken]})
    asked: Any = {"model": "caller", "input": "Hi"}
    answer = server.client.post("/v1/responses", json=asked)  # it didn't ask for the server
    assert answer.status_code == 200
    assert "mcp.broken" in answer.headers["x-roundhouse-ignored"]
    asked["tools"] = [{"type": "mcp", "server_label": "broken"}]
    told = server.client.post("/v1/responses", json=asked)
    assert told.status_code == 424
    assert told.json()["error"]["param"] == "tools[0]"


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["streamable-http", "sse", "stdio"])
def test_transports_old_and_new(tmp_path: Path, serve: Serve, transport: str) -> None:
    """The official library's own server, by the stateless protocol; all others here are older."""
    entry: dict[str, Any] = {"name": "honest", "allow_private_addresses": True}
    with ExitStack() as held:
        if transport == "stdio":
            words = (sys.executable, "-m", "tests.mcp_servers.honest", transport)
            entry |= {"command": shlex.join(words), "folder": str(ROOT)}
        else:
            entry["url"] = held.enter_context(listening(transport))
        models = [script(tmp_path, "caller", LINES)]
        server = serve({"models": models, "mcp": [entry], "log": {"level": "debug"}})
        asked = {"model": "caller", "input": "Please add.", "tools": [MCP]}
        answer = server.client.post("/v1/responses", json=asked).json()
    assert "5" in [item.get("output") for item in answer["output"]]
    assert server.log.wait_for("session begun")["protocol"] == "2026-07-28"


# ------------------------------------------------------------------ one at a time, for a page


def asked(server: Served, path: str, key: str = "mine", body: Any = None) -> httpx.Response:
    """GET, or POST where there is a body."""
    headers = {"authorization": f"Bearer {key}"}
    method = "GET" if body is None else "POST"
    return server.client.request(method, path, json=body, headers=headers)


def test_a_page_lists_servers_and_their_tools(server: Served) -> None:
    assert asked(server, "/v1/admin/me").json()["mcp"] == ["honest"]
    answer = asked(server, "/v1/admin/mcp/tools?server=honest").json()
    add, weather, *others = answer["tools"]
    names = [tool["name"] for tool in (add, weather, *others)]
    assert names == ["add", "weather", "fail", "wait", "waits", "long"]
    assert add["function"] == "honest__add"
    assert set(add["parameters"]["properties"]) == {"a", "b"}
    assert (add["asks"], weather["asks"]) == (False, True)


def test_a_page_runs_a_tool_that_its_user_allowed(server: Served) -> None:
    def called(tool: str, **arguments: Any) -> Any:
        body = {"server": "honest", "tool": tool, "arguments": arguments}
        return asked(server, "/v1/admin/mcp/call", body=body).json()

    assert called("add", a=2, b=3) == {"text": "5", "is_error": False}
    assert called("weather", city="Oslo")["text"] == "Rain in Oslo."
    assert called("fail")["is_error"]
    assert called("who")["error"]["param"] == "tool"  # it is none of those that may be called


def test_a_page_gets_no_other_keys_servers(server: Served) -> None:
    assert asked(server, "/v1/admin/me", "yours").json()["mcp"] == []
    answer = asked(server, "/v1/admin/mcp/tools?server=honest", "yours")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "server")
    body = {"server": "honest", "tool": "add", "arguments": {"a": 1, "b": 1}}
    assert asked(server, "/v1/admin/mcp/call", "yours", body).status_code == 400
