"""What a server with two cards and many models might report, shaped as in docs/console-api.md."""

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from backends.contract.samplers import ROWS

NOW = 1_790_000_000.0
GIB = 2**30

ME: dict[str, Any] = {
    "role": "admin",
    "label": "laptop",
    "models": None,
    "autoload": True,
    "keys": False,
    "version": "0.1.0",
    "server": "http://127.0.0.1:8000",
    "default_model": "qwen3-8b",
    "apis": ["openai", "anthropic", "ollama", "responses", "tabby", "llamaserver"],
    "log_prompts": False,
    "inspector": True,
    "downloads": True,
    "uploads": True,
    "deletion": False,
    "paths": [],
    "sync": False,
    "mcp": ["search", "files"],
}


def model(name: str, size: float = 5.0, state: str = "unloaded", **more: object) -> dict[str, Any]:
    """A model of `size` GiB."""
    weights, cache, engine = int(size * GIB), int(size * GIB / 5), int(size * GIB / 60)
    is_there = state in ("loaded", "draining")
    fit: dict[str, Any] = {"verdict": "loaded" if is_there else "fits", "unload": []}
    return {
        "id": name,
        "aliases": [],
        "state": state,
        "progress": None,
        "why_failed": None,
        "backend": "llamacpp",
        "library": None,
        "format": "gguf",
        "architecture": "qwen3",
        "remote": False,
        "context_length": 32768,
        "size_bytes": weights,
        "modalities": ["text"],
        "capabilities": ["tools", "reasoning"],
        "pinned": False,
        "preload": False,
        "default": False,
        "copy_of": None,
        "cost": {"cuda:0": weights + cache + engine},
        "parts": {"weights": weights, "cache": cache, "projector": 0, "engine": engine},
        "measured": True,
        "load_seconds": 3.2,
        "missing_bytes": 0,
        "memory": f"needs {size * 1.2:.1f} GiB (measured); 17.9 GiB of cuda:0 are free",
        "fit": fit,
        "in_use": 0,
        "waiting": 0,
        "slots": 16 if is_there else None,
        "ttl": 600.0,
        "idle_seconds": 41.0 if is_there else None,
        "expires_at": NOW + 559 if is_there else None,
        "loaded_at": NOW - 900 if is_there else None,
        "file": f"{name}-Q4_K_M.gguf",
        **more,
    }


def some_models() -> list[dict[str, Any]]:
    """One in every state."""
    progress = {
        "stage": "weights",
        "done": int(6.2 * GIB),
        "total": int(9.1 * GIB),
        "began_at": NOW - 5,
        "seconds_left": 2.6,
    }
    after = {"verdict": "fits_after", "unload": ["qwen3-8b"]}
    large = {"verdict": "too_large", "unload": [], "why": "needs 141.0 GiB of 24.0 GiB"}
    sees = ["text", "image"]
    return [
        model("qwen3-8b", 5.0, "loaded", default=True, pinned=True, in_use=2, slots=16, ttl=-1.0,
              expires_at=None, idle_seconds=None, aliases=["org/qwen3"]),
        model("gemma-3-12b-it", 7.3, "loaded", modalities=sees, capabilities=["vision"],
              cost={"cuda:1": int(9.8 * GIB)}, backend="transformers", format="safetensors"),
        model("glm-4-9b", 9.1, "loading", progress=progress, waiting=3, loaded_at=None),
        model("mistral-small-24b", 14.3, fit=after, measured=False, load_seconds=8.0),
        model("llama-3.3-70b-exl3", 38.0, fit=after, backend="exllamav3", format="exl3",
              cost={"cuda:0": int(21 * GIB), "cuda:1": int(20 * GIB)}),
        model("deepseek-v3-q4", 141.0, fit=large),
        model("broken-download", 2.0, "failed", backend=None, format=None, context_length=None,
              cost=None, parts=None, fit={"verdict": "unknown", "unload": []},
              capabilities=None, why_failed="the file ends after 1.2 of 2.0 GiB"),
        model("cluster/qwen3-235b", 0, remote=True, backend=None, format=None, size_bytes=None,
              cost=None, parts=None, fit={"verdict": "remote", "unload": []}, memory=None,
              context_length=131072, file=None),
    ]  # fmt: skip


def hundred_models() -> list[dict[str, Any]]:
    """As a folder of somebody who collects them."""
    families = ("qwen3", "llama-3.3", "gemma-3", "mistral-small", "glm-4", "phi-4", "command-a")
    return [
        model(f"{families[k % 7]}-{(k % 9 + 1) * 3}b-instruct-q{k % 5 + 4}_k_m-v{k}", 1 + k % 40)
        for k in range(140)
    ]


def request(number: int, state: str = "done", **more: object) -> dict[str, Any]:
    """One that was or is made."""
    return {
        "number": number,
        "request": f"{number:08x}",
        "key": "laptop",
        "api": "chat",
        "model": "qwen3-8b",
        "state": state,
        "place": None,
        "percent": None,
        "began_at": NOW - 400 + number * 3,
        "seconds": 1.9 + number % 7,
        "queued_seconds": 0.2 * (number % 3),
        "load_seconds": 0.0,
        "ttft": 0.41,
        "prompt_tokens": 812 + 37 * number,
        "cached_tokens": 700,
        "completion_tokens": 96 + 11 * number,
        "reasoning_tokens": 40,
        "tokens_per_second": 61.2 - number % 9,
        "outcome": "ok" if state == "done" else None,
        "prompt": None,
        **more,
    }


RAW = (
    "<think>Where is Bern?\n</think>\n\nLet me look."
    "<tool_call>\nweather({'city': 'Bern'})</tool_call>"
)


def inspection(number: int = 29, **more: object) -> dict[str, Any]:
    """One request as it went through: reasoning, content and a call."""
    texts = ["<think>", "Where is Bern?", "\n</think>\n\n", "Let me look.", "<tool_call>\n",
             "weather", "({'city': '", "Bern", "'})</tool_call>"]  # fmt: skip
    whose = [None, 0, None, 1, None, 2, None, 2, None]
    ends = [sum(map(len, texts[: index + 1])) for index in range(len(texts))]
    spans = [
        {"from": end - len(text), "to": end, "part": part}
        for text, end, part in zip(texts, ends, whose, strict=True)
    ]
    prompt = ["<|im_start|>", "user", "\n", "What", " is", " the", " weather", " in", " Bern", "?",
              "<|im_end|>", "\n", "<|im_start|>", "assistant", "\n"]  # fmt: skip
    asked = {
        "model": "qwen3-8b",
        "messages": [{"role": "user", "content": "What is the weather in Bern?"}],
        "stream": True,
        "odd": 1,
    }
    return {
        "request": request(number),
        "method": "POST",
        "path": "/v1/chat/completions",
        "body": json.dumps(asked),
        "body_bytes": 128,
        "body_cut": False,
        "stages": [
            {"name": "queue", "from": 0.0, "to": 0.2}, {"name": "load", "from": 0.2, "to": 0.9},
            {"name": "prepare", "from": 0.9, "to": 0.91},
            {"name": "prompt", "from": 0.91, "to": 1.3},
            {"name": "answer", "from": 1.3, "to": 2.9},
        ],
        "backend": "llamacpp",
        "split": {"format": "qwen3", "why": "the template has <tool_call>"},
        "sampling": {"temperature": 0.7, "top_p": 0.95},
        "max_tokens": None,
        "unapplied": [
            {"name": "odd", "reason": "this API has no such field", "partly": False},
            {"name": "response_format", "reason": "uniqueItems is not enforced", "partly": True},
        ],
        "control": ["<|im_start|>", "<|im_end|>", "<think>", "</think>"],
        "prompts": [
            {"text": "".join(prompt), "tokens": list(range(100, 115)), "pieces": prompt,
             "images": 0}
        ],
        "answers": [
            {
                "prompt": 0,
                "raw": RAW,
                "pieces": [[text, [200 + index]] for index, text in enumerate(texts)],
                "spans": spans,
                "parts": [
                    {"kind": "reasoning", "text": "Where is Bern?", "name": None, "id": None,
                     "whole": True},
                    {"kind": "content", "text": "Let me look.", "name": None, "id": None,
                     "whole": True},
                    {"kind": "call", "text": '{"city": "Bern"}', "name": "weather", "id": "c1",
                     "whole": True},
                ],
                "finish": "tool_calls", "cause": "end_token", "stop": None, "end_token": 2,
                "warning": None, "cut": False,
            }
        ],
        "error": None,
        **more,
    }  # fmt: skip


def details(**more: object) -> dict[str, Any]:
    """What is known of a model that was downloaded."""
    return {
        "model": "broken-download",
        "repository": "Qwen/Qwen3-8B-GGUF",
        "download": "Qwen/Qwen3-8B-GGUF:Q4_K_M",
        "license": "apache-2.0",
        "described": {"name": "Qwen3 8B", "size_label": "8B", "base_model.0.name": "Qwen3 8B Base"},
        "template": "{%- for message in messages %}<|im_start|>{{ message.role }}\n" * 20,
        "split": {"format": "qwen3", "why": "the template has <tool_call>"},
        "capabilities": ["tools", "reasoning"],
        "sampling": {"temperature": 0.6, "top_p": 0.95},
        "trained_context": 40_960,
        "layers": 36,
        "vocabulary": 151_936,
        "folder": "/models/Qwen3-8B-GGUF-Q4_K_M",
        "files": [{"name": "Qwen3-8B-Q4_K_M.gguf", "bytes": 5_027_783_488}],
        "deletable": True,
        "why_not": None,
        **more,
    }


def hub_models() -> list[dict[str, Any]]:
    """What the hub lists: one that fits, one that fits after others go, one of unknown size."""
    room = {
        "device": "cuda:0",
        "needs": 5_500_000_000,
        "speed": 62.4,
        "estimate": "size",
        "why": None,
    }
    plain = {
        "repository": "Qwen/Qwen3-8B-GGUF", "format": "gguf", "likes": 1_204, "downloads": 453_000,
        "gated": False, "parameters": 8_190_735_360, "size": 5_006_587_000,
        "architecture": "qwen3", "context_length": 40_960, "task": "text-generation",
        "license": "apache-2.0", "changed": "2026-05-21",
        "fit": {**room, "verdict": "fits", "unload": []},
    }  # fmt: skip
    after = {**room, "verdict": "fits_after", "unload": ["glm-4-9b"]}
    return [
        plain,
        {**plain, "repository": "google/gemma-3-27b-it-qat-q4_0-gguf", "gated": True, "likes": 88,
         "parameters": 27_009_002_240, "size": 16_500_000_000, "fit": after},
        {**plain, "repository": "somebody/a-model-with-quite-a-long-name-that-goes-on-and-on-GGUF",
         "parameters": None, "size": None, "fit": None, "license": None, "likes": 0},
    ]  # fmt: skip


def some_requests() -> list[dict[str, Any]]:
    """One in every state, and what was before."""
    return [
        *(request(number, outcome=("ok", "ok", "ok", "left", "context_length_exceeded")[number % 5],
                  api=("chat", "messages", "ollama")[number % 3]) for number in range(1, 30)),
        request(30, "answering", key="open-webui"),
        request(31, "prompt", ttft=None, completion_tokens=0, tokens_per_second=None),
        request(32, "loading", model="glm-4-9b", place=1, percent=68, ttft=None,
                completion_tokens=0, tokens_per_second=None, key="agent"),
        request(33, "queued", model="glm-4-9b", place=2, ttft=None, completion_tokens=0,
                tokens_per_second=None, key="agent"),
    ]  # fmt: skip


def held(name: str, size: float, state: str = "loaded") -> dict[str, Any]:
    """What a model takes of a device, `size` GiB in all."""
    weights, cache = int(size * 0.78 * GIB), int(size * 0.19 * GIB)
    total = int(size * GIB)
    parts = {"weights": weights, "cache": cache, "projector": 0, "engine": total - weights - cache}
    return {"id": name, "state": state, "bytes": total, "parts": parts, "kept_tokens": 11_400}


def device(name: str, total: float, models: list[dict[str, Any]], **more: object) -> dict[str, Any]:
    """A device of `total` GiB."""
    promised = sum(one["bytes"] for one in models)
    others = int(1.2 * GIB)
    budget = int((total - 1.5) * GIB)
    return {
        "device": name,
        "total": int(total * GIB),
        "budget": budget,
        "promised": promised,
        "kept": 0,
        "free": budget - promised,
        "others": others,
        "process": promised + int(0.2 * GIB),
        "available": int(total * GIB) - promised - others,
        "models": models,
        "claims": [],
        **more,
    }


def gauges() -> dict[str, Any]:
    """Two cards and the machine's own memory."""
    claim = {"id": "glm-4-9b", "bytes": int(4.2 * GIB)}
    return {
        "time": NOW,
        "devices": [
            device("cuda:0", 25.7, [held("qwen3-8b", 6.1), held("glm-4-9b", 10.9, "loading")],
                   claims=[claim]),
            device("cuda:1", 25.7, [held("gemma-3-12b-it", 9.8)]),
            device("cpu", 67.4, [], others=int(12.4 * GIB)),
        ],
        "models": [
            {"id": "qwen3-8b", "in_use": 2, "waiting": 0, "tokens_per_second": 118.4,
             "prompt_tokens_per_second": 810.0, "ttft": 0.41},
            {"id": "glm-4-9b", "in_use": 0, "waiting": 2, "tokens_per_second": 0.0,
             "prompt_tokens_per_second": 0.0, "ttft": None},
        ],
        "waiting": 2,
        "in_use": 2,
        "tokens_per_second": 118.4,
    }  # fmt: skip


def history() -> dict[str, Any]:
    """An hour of it."""
    steps = range(360)
    wave = [60 + 50 * math.sin(step / 19) * math.sin(step / 5) for step in steps]
    return {
        "every": 10.0,
        "times": [NOW - 3600 + 10 * step for step in steps],
        "devices": {
            name: {
                "promised": [size * GIB] * 360,
                "others": [int((1.2 + 0.2 * math.sin(step / 30)) * GIB) for step in steps],
                "process": [size * GIB] * 360,
                "models": models,
            }
            for name, size, models in (
                ("cuda:0", 17, {
                    "qwen3-8b": [int(6.1 * GIB) if step > 40 else None for step in steps],
                    "glm-4-9b": [int(10.9 * GIB) if step > 200 else None for step in steps],
                    "phi-4": [int(8.2 * GIB) if 90 < step <= 200 else None for step in steps],
                }),
                ("cuda:1", 10, {"gemma-3-12b-it": [int(9.8 * GIB)] * 360}),
                ("cpu", 0, {}),
            )
        },
        "models": {
            "qwen3-8b": {
                "tokens_per_second": [max(0.0, one) for one in wave],
                "ttft": [0.3 + abs(one) / 300 for one in wave],
                "waiting": [max(0, int(one / 40)) for one in wave],
                "in_use": [max(0, int(one / 25)) for one in wave],
            },
            "gemma-3-12b-it": {
                "tokens_per_second": [max(0.0, 70 - one) for one in wave],
                "ttft": [None if step % 50 < 25 else 0.9 for step in steps],
                "waiting": [0] * 360,
                "in_use": [1] * 360,
            },
        },
    }  # fmt: skip


def log_lines() -> list[dict[str, Any]]:
    """Lines of every level."""
    lines = [
        ("info", "listening", {"address": "http://127.0.0.1:8000"}),
        ("info", "model loading", {"model": "qwen3-8b", "needs": "6.1 GiB"}),
        ("info", "model loaded", {"model": "qwen3-8b", "seconds": "3.2"}),
        (
            "warning",
            "request refused",
            {"reason": "key", "client": "10.0.0.7", "route": "/v1/models"},
        ),
        (
            "error",
            "load failed",
            {"model": "broken-download", "why": "the file ends after 1.2 GiB"},
        ),
        ("debug", "turn", {"model": "qwen3-8b", "waiting": "2"}),
    ]
    return [
        {"number": number, "time": NOW - 300 + number * 7, "level": level, "event": event,
         "fields": fields}
        for number, (level, event, fields) in enumerate(lines * 6, 1)
    ]  # fmt: skip


def downloads() -> list[dict[str, Any]]:
    """One that runs, one that was stopped, one that failed."""
    base = {
        "file": "name-Q4_K_M.gguf",
        "done": int(2.1 * GIB),
        "total": int(5.0 * GIB),
        "bytes_per_second": 52_428_800.0,
        "seconds_left": 56.0,
        "why_failed": None,
        "began_at": NOW - 40,
        "path": None,
    }
    still = {"bytes_per_second": None, "seconds_left": None}
    return [
        {**base, "id": "1", "model": "Qwen/Qwen3-14B-GGUF:Q4_K_M", "state": "running"},
        {**base, **still, "id": "2", "model": "google/gemma-3-27b-it-GGUF:Q6_K",
         "state": "stopped"},
        {**base, **still, "id": "3", "model": "org/gone", "state": "failed",
         "why_failed": "the hub answered 404: no such repository"},
    ]  # fmt: skip


def snapshot(**more: object) -> dict[str, Any]:
    """All of it, as the first event tells it."""
    return {
        "time": NOW,
        "me": ME,
        "models": some_models(),
        "requests": some_requests(),
        "gauges": gauges(),
        "history": history(),
        "downloads": downloads(),
        "log": log_lines(),
        **more,
    }


def nothing() -> dict[str, Any]:
    """A server on which nothing is yet."""
    cpu = device("cpu", 16.0, [])
    empty = {"time": NOW, "devices": [cpu], "models": [], "waiting": 0, "in_use": 0,
             "tokens_per_second": 0.0}  # fmt: skip
    past = {"every": 10.0, "times": [], "devices": {}, "models": {}}
    return snapshot(models=[], requests=[], gauges=empty, history=past, downloads=[], log=[])


def sampling(name: str) -> dict[str, Any]:
    """What an engine does with each parameter."""
    applied = {"temperature": 0.7, "top_p": 0.95, "top_k": 40, "min_p": 0.05, "seed": None,
               "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
               "typical_p": 1.0, "xtc_probability": 0.0}  # fmt: skip
    lacking = {"tfs": 1.0, "top_a": 0.0, "skew": 0.0}
    bounds = {"minimum": None, "maximum": None}

    def described(key: str) -> dict[str, Any]:
        slider = msgspec.to_builtins(ROWS[key].slider)
        return {"name": key, **bounds, "slider": slider}

    return {
        "model": name,
        "backend": "llamacpp",
        "known": True,
        "parameters": [
            *({**described(key), "applied": True, "why": None, "default": value}
              for key, value in applied.items()),
            *({**described(key), "applied": False, "why": "llamacpp does not have it",
               "default": value} for key, value in lacking.items()),
        ],
        "logprobs": True,
        "schemas": True,
        "images": False,
        "tools": True,
        "reasoning": True,
    }  # fmt: skip


def answer(
    text: str, *, reasoning: str = "", pause: float = 0.0, size: int = 4, logprobs: bool = False
) -> Callable[[Any], Iterator[dict[str, Any]]]:
    """A streamed answer: `size` characters each `pause` seconds."""

    def stream(_body: object) -> Iterator[dict[str, Any]]:
        for field, said in (("reasoning_content", reasoning), ("content", text)):
            for at in range(0, len(said), size):
                piece = said[at : at + size]
                choice: dict[str, Any] = {
                    "index": 0,
                    "delta": {field: piece},
                    "finish_reason": None,
                }
                if logprobs:
                    choice["logprobs"] = {"content": [token(piece)]}
                yield {"choices": [choice]}
                time.sleep(pause)
        yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        yield {"choices": [], "usage": usage(len(text)), "timings": {"predicted_per_second": 61.2}}

    return stream


def token(text: str) -> dict[str, Any]:
    """Its probability, and what else could have come."""
    likely = -0.05 - (len(text.strip()) * 7 + ord(text[0])) % 11 / 4
    others = [{"token": " other", "logprob": -1.6}, {"token": "\n", "logprob": -2.9}]
    top = [{"token": text, "logprob": likely}, *others]
    return {"token": text, "logprob": likely, "bytes": list(text.encode()), "top_logprobs": top}


def usage(tokens: int) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": 812,
        "completion_tokens": tokens,
        "total_tokens": 812 + tokens,
        "prompt_tokens_details": {"cached_tokens": 700},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }


def nodes() -> list[dict[str, Any]]:
    """`GET /v1/nodes`: a machine with a card."""
    devices = {"box-b/cuda:0": int(22 * GIB), "box-b/cpu": int(60 * GIB)}
    taken = {"box-b/cuda:0": int(14 * GIB), "box-b/cpu": 0}
    return [{"name": "box-b", "address": "192.168.1.7:8400", "draining": False,
             "devices": devices, "taken": taken, "models": ["mistral-small-24b"]}]  # fmt: skip


def upstreams(*, draining: bool = False) -> list[dict[str, Any]]:
    """`GET /v1/upstreams`: a server that answers, and one that doesn't."""
    up = {"url": "http://192.168.1.8:8000/v1", "state": "up", "lease": None, "draining": draining,
          "busy": 2, "asked": 812, "failed": 0, "fault": None, "reason": None}  # fmt: skip
    out = {**up, "url": "http://192.168.1.9:8000/v1", "state": "resting", "lease": 21.0,
           "draining": False, "busy": 0, "failed": 3, "fault": "refused",
           "reason": "the connection was refused"}  # fmt: skip
    return [{"name": "big", "replicas": [up, out]}]


def usage_rows() -> list[dict[str, Any]]:
    """`GET /v1/usage`: three keys, three models, two weeks."""
    return [
        {
            "key": key, "model": model, "day": f"2026-01-{day:02}", "requests": day * size,
            "failed": day % 3, "prompt_tokens": 900 * day * size,
            "cached_tokens": 500 * day * size, "completion_tokens": 170 * day * size,
            "reasoning_tokens": 40 * day * size,
        }
        for size, key in enumerate(("laptop", "the support team's assistant", "phone"), 1)
        for model in ("qwen3-8b", "mistral-small-24b", "glm-4-9b")[:size]
        for day in range(1, 15)
    ]  # fmt: skip
