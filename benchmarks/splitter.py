"""What splitting costs, beside doing nothing and beside transformers' parser.

    python -m benchmarks.splitter [--repeats 5]

Every text comes in pieces of four characters, about what a token is. Time is CPU time, best of the
repeats, so that other work of the machine counts little. transformers parses by a tokenizer's
`response_template`: it is measured with the templates that its own server carries for Qwen3,
Qwen3.5 and Gemma 4, and left out where it is not installed. Writes JSON.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gateway.splitter import FORMATS, Splitter
from gateway.terms.events import Event
from gateway.terms.request import Tool

RESULTS = Path(__file__).with_name("results") / "splitter.json"
PROSE = "The first boat leaves at 6:40, so be on the quay before half past six; it is cold there.\n"
TOKEN = 4  # characters
PATIENCE = 30.0  # seconds; what took longer at 100 kB is not tried at 1 MB
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}, "body": {"type": "string"}}}


class Workload(msgspec.Struct, frozen=True):
    """An output to split. `model_type` is the key of transformers' template for the same format."""

    name: str
    format: str
    model_type: str
    text: str
    in_reasoning: bool = False


class Figure(msgspec.Struct, frozen=True):
    """The cost of one reader on one workload. None: not measured."""

    workload: str
    format: str
    reader: str
    characters: int
    microseconds_per_token: float | None
    megabytes_per_second: float | None


class Reader(Protocol):
    """What is fed: ours, nothing, or transformers'."""

    def feed(self, text: str) -> object: ...


class Nothing:
    """Takes text and gives nothing: what the loop itself costs."""

    def feed(self, text: str) -> list[Event]:
        return []


def workloads() -> list[Workload]:
    """Content, reasoning, and calls whose arguments are one long string."""
    prose = PROSE * 4_000
    found = [
        Workload("plain content", "plain", "", prose),
        Workload("plain content", "hermes_json", "qwen3", prose),
        Workload("plain content", "harmony", "", f"<|channel|>final<|message|>{prose}"),
        Workload("long reasoning", "hermes_json", "qwen3", prose, in_reasoning=True),
    ]
    for name, size in (("100 kB call", 100_000), ("1 MB call", 1_000_000)):
        body = (PROSE * (size // len(PROSE) + 1))[:size]
        found += [
            Workload(name, "hermes_json", "qwen3", hermes(body)),
            Workload(name, "qwen3_coder_xml", "qwen3_5", qwen_coder(body)),
            Workload(name, "gemma4", "gemma4", gemma(body)),
        ]
    return found


def hermes(body: str) -> str:
    """A call as Hermes and Qwen3 write it."""
    arguments = {"title": "Notes", "body": body}
    call = json.dumps({"name": "write_note", "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def qwen_coder(body: str) -> str:
    """The same as Qwen3-Coder writes it."""
    return (
        "<tool_call>\n<function=write_note>\n<parameter=title>\nNotes\n</parameter>\n"
        f"<parameter=body>\n{body}\n</parameter>\n</function>\n</tool_call>"
    )


def gemma(body: str) -> str:
    """The same as Gemma 4 writes it."""
    return f'<|tool_call>call:write_note{{body:<|"|>{body}<|"|>,title:<|"|>Notes<|"|>}}<tool_call|>'


def ours(work: Workload) -> Reader:
    """Our splitter."""
    tools = [Tool(name="write_note", parameters=SCHEMA)]
    return Splitter(FORMATS[work.format], in_reasoning=work.in_reasoning, tools=tools)


def nothing(_work: Workload) -> Reader:
    """A splitter that does nothing."""
    return Nothing()


def transformers_reader() -> Callable[[Workload], Reader | None]:
    """Makes transformers' parser for a workload; None where it has no template for the format."""
    try:
        # Imported here because the comparison is optional and the library takes seconds to load.
        from transformers.cli.serving import utils  # noqa: PLC0415
        from transformers.utils.chat_parsing import ResponseParser  # noqa: PLC0415
    except ImportError:
        return lambda _work: None
    templates: Mapping[tuple[str, ...], dict[str, Any]] = utils._RESPONSE_TEMPLATE_FALLBACKS  # noqa: SLF001 — nothing public gives them

    def make(work: Workload) -> Reader | None:
        template = next(
            (each for types, each in templates.items() if work.model_type in types), None
        )
        if template is None:
            return None
        anchor = template["start_anchor"]
        begun = anchor if isinstance(anchor, str) else anchor[0]
        prefix = begun + ("<think>\n" if work.in_reasoning else "")
        parser: Reader = ResponseParser(template, prefix=prefix)
        return parser

    return make


def seconds(
    make: Callable[[Workload], Reader | None], work: Workload, repeats: int
) -> float | None:
    """The best time for the whole text; None if there is no such reader."""
    pieces = [work.text[at : at + TOKEN] for at in range(0, len(work.text), TOKEN)]
    best: float | None = None
    for _ in range(repeats):
        reader = make(work)
        if reader is None:
            return None
        begin = time.process_time()
        for piece in pieces:
            reader.feed(piece)
        spent = time.process_time() - begin
        best = spent if best is None else min(best, spent)
        if spent > PATIENCE:
            break
    return best


def measure(repeats: int) -> list[Figure]:
    """All readers on all workloads."""
    readers = {"nothing": nothing, "ours": ours, "transformers": transformers_reader()}
    figures = []
    too_slow: set[tuple[str, str]] = set()
    for work in workloads():
        for name, make in readers.items():
            spent = None
            if (name, work.format) not in too_slow:
                spent = seconds(make, work, repeats)
            if spent is not None and spent > PATIENCE / 10:
                too_slow.add((name, work.format))
            figures.append(figure(work, name, spent))
    return figures


def figure(work: Workload, reader: str, spent: float | None) -> Figure:
    """One measurement as it is reported."""
    length = len(work.text)
    return Figure(
        workload=work.name,
        format=work.format,
        reader=reader,
        characters=length,
        microseconds_per_token=None if spent is None else round(spent * 1e6 / (length / TOKEN), 3),
        megabytes_per_second=None if spent is None else round(length / spent / 1e6, 2),
    )


def growth(figures: Sequence[Figure]) -> dict[str, float]:
    """How many times longer a 1 MB call takes than one of 100 kB, by format; 10 is linear."""
    cost = {
        (each.format, each.workload): each.characters * each.microseconds_per_token
        for each in figures
        if each.reader == "ours" and each.microseconds_per_token is not None
    }
    return {
        name: round(spent / cost[name, "100 kB call"], 2)
        for (name, workload), spent in cost.items()
        if workload == "1 MB call"
    }


def show(figures: Sequence[Figure]) -> None:
    """Prints the table."""
    print(f"{'workload':16}{'format':18}{'reader':14}{'us/token':>10}{'MB/s':>9}")
    for each in figures:
        if each.microseconds_per_token is None:
            continue
        print(
            f"{each.workload:16}{each.format:18}{each.reader:14}"
            f"{each.microseconds_per_token:>10.2f}{each.megabytes_per_second:>9.2f}"
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path, default=RESULTS)
    wanted = parser.parse_args()
    figures = measure(wanted.repeats)
    show(figures)
    print("1 MB call / 100 kB call:", growth(figures))
    record = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "growth": growth(figures),
        "figures": msgspec.to_builtins(figures),
    }
    wanted.results.parent.mkdir(exist_ok=True)
    wanted.results.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
