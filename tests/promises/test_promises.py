"""Each line of docs/features.md is tried on `roundhouse serve` itself, over a socket."""

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISES = Path(__file__).parent

# How the line begins: the tests, by their files from here. A test that is named runs the process.
TESTS: Mapping[str, tuple[str, ...]] = {
    "`make run`, `make test`": ("../gateway/cli/test_serve.py", "test_operating.py"),
    "OpenAI chat and text completions": ("test_answers.py",),
    "Prompt scoring": ("test_answers.py", "clients/test_evaluation.py"),
    "Reasoning, content and tool calls": ("test_answers.py",),
    "Control of thinking": ("test_answers.py",),
    "llama.cpp": ("test_answers.py",),
    "transformers": ("../cardless/test_serve.py",),
    "exllamav2": ("../cardless/test_serve.py",),
    "Images in messages": ("test_answers.py",),
    "Hot swap": ("test_swapping.py", "test_lasting.py"),
    "Models larger than the cards": ("../device/test_fit.py",),
    "Two models that swap too often": ("../device/test_fit_large.py",),
    "Conversations kept over swaps": ("test_kept.py",),
    "Text that repeats is drafted": ("test_speculation.py",),
    "LoRA adapters chosen per request; presets": ("test_adapters.py", "test_presets.py"),
    "Engines on other machines, over TCP": ("test_nodes.py",),
    "Engines in their own processes": ("test_workers.py", "test_commands.py"),
    "Limits and usage per key": ("test_limits.py", "test_usage.py", "upstreams/test_joining.py"),
    "Structured output": ("test_answers.py",),
    "`tool_choice`": ("test_answers.py",),
    "OpenAI responses and conversations": ("test_lasting.py", "test_operating.py"),
    "Coding agents' tools": ("test_agent_tools.py",),
    "Tools of MCP servers": ("test_mcp.py",),
    "Anthropic messages": ("test_answers.py", "test_waiting.py"),
    "Ollama chat": ("test_answers.py", "test_waiting.py"),
    "KoboldAI": ("test_answers.py", "test_lasting.py"),
    "TGI generation": ("test_answers.py", "test_smaller_apis.py"),
    "Cohere chat": ("test_answers.py", "test_smaller_apis.py"),
    "Embeddings and reranking": ("test_answers.py", "test_ranking.py"),
    "Models of other servers": ("upstreams/test_mesh.py", "upstreams/test_fleet_served.py"),
    "TabbyAPI's admin API": ("test_swapping.py", "test_operating.py", "test_waiting.py"),
}
# What has no test here, because it is true of other machines or of none.
ELSEWHERE: Mapping[str, str] = {
    "Samplers with the same meaning": "tests/cardless/test_sameness.py, on the engines alone",
}


def promised() -> list[str]:
    """What stands in the table's first column."""
    page = (ROOT / "docs" / "features.md").read_text("utf-8")
    table = page.strip().rpartition("\n\n")[2].splitlines()[2:]
    return [row.removeprefix("| ").partition(" |")[0] for row in table]


def test_every_feature_has_a_test_of_the_served_process() -> None:
    lines, known = promised(), {*TESTS, *ELSEWHERE}
    assert len(lines) > 20
    assert not [line for line in lines if not any(map(line.startswith, known))]
    assert not [name for name in known if not any(line.startswith(name) for line in lines)]


def test_those_tests_run_the_process() -> None:
    for files in TESTS.values():
        for file in files:
            text = (PROMISES / file).read_text("utf-8")
            assert "tests.served import" in text, file
            assert "def test_" in text
