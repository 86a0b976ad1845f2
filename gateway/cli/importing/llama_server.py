"""A command line of llama-server as a model that llama.cpp serves in this program.

The facts are those of llama.cpp's common/arg.cpp, older spellings included. What concerns the
server itself (its port, its log) has no place in a model and is passed over.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any, TypeAlias

import msgspec

from backends.contract import samplers
from gateway.cli.importing.imported import SAMPLING, Data, Imported, NotAModel

ALL_LAYERS = 99  # and more: what people write for all of them
EVERY_EXPERT = 999  # layers: more than any model has
ON = ("on", "1", "true", "enabled")


Setting: TypeAlias = tuple[str, Callable[[str], Any]]


def _flash(value: str) -> str:
    if value == "auto":
        return value
    return "on" if value in ("", *ON) else "off"  # older ones took no value


# Each flag's place in the entry, and how its value is read.
VALUES: Mapping[str, Setting] = {
    "-m --model": ("path", str),
    "-hf -hfr --hf-repo": ("path", "hf:{}".format),
    "-c --ctx-size": ("context", int),
    "-np --parallel": ("slots", int),
    "-b --batch-size": ("options.batch_size", int),
    "-ub --ubatch-size": ("options.micro_batch_size", int),
    "-t --threads": ("options.threads", int),
    "-tb --threads-batch": ("options.threads_batch", int),
    "-ctk --cache-type-k": ("options.cache_type_k", str),
    "-ctv --cache-type-v": ("options.cache_type_v", str),
    "-mg --main-gpu": ("options.main_gpu", int),
    "-ncmoe --n-cpu-moe": ("options.cpu_experts", int),
    "-mm --mmproj": ("options.mmproj", str),
    "-fa --flash-attn": ("options.flash_attention", _flash),
    "-ts --tensor-split": (
        "options.tensor_split",
        lambda text: [float(part) for part in re.split("[,/]", text)],
    ),
    "--rope-freq-base": ("options.rope_freq_base", float),
    "--rope-freq-scale": ("options.rope_freq_scale", float),
    "--pooling": ("options.pooling", str),
    "-md --model-draft --spec-draft-model": ("options.draft.model", str),
    "--draft-max --draft --draft-n --spec-draft-n-max": (
        "options.draft.tokens",
        lambda text: max(1, min(32, int(text))),
    ),
    "--chat-template-file": ("template", str),
    "--chat-template-kwargs": ("template_kwargs", msgspec.json.Decoder(dict).decode),
    # Others of sampling are called as in requests, see `_of_sampling`.
    "--temp": ("sampling.temperature", float),
    "--top-nsigma": ("sampling.top_n_sigma", float),
    "--mirostat-ent": ("sampling.mirostat_tau", float),
    "--mirostat-lr": ("sampling.mirostat_eta", float),
}
# Those that need more than a place: methods of `_Line`.
READ: Mapping[str, str] = {
    "-hff --hf-file": "hub_file",
    "-ngl --gpu-layers --n-gpu-layers": "layers",
    "-dev --device": "device",
    "--lora": "adapter",
    "-sm --split-mode": "split",
    "-ot --override-tensor": "tensors",
    "--reasoning-budget": "budget",
    "--spec-type": "drafts",
}
SWITCHES: Mapping[str, tuple[str, Any]] = {
    "--no-mmap": ("options.mmap", False),
    "--mlock": ("options.mlock", True),
    "-cmoe --cpu-moe": ("options.cpu_experts", EVERY_EXPERT),
    "--no-mmproj --no-mmproj-auto": ("options.vision", False),
    "-kvu --kv-unified": ("unified", True),
}
# Of the server, or what is so here anyway.
PASSED_OVER: Mapping[bool, str] = {
    True: "-a --alias --host --port --api-key --api-key-file --path --api-prefix --ssl-key-file "
    "--ssl-cert-file -to --timeout --threads-http --slot-save-path --log-file --log-colors "
    "-lv --verbosity --log-verbosity --cache-reuse -cram --cache-ram --ctx-checkpoints "
    "--slot-prompt-similarity -sps --fit -fit -fitt --fit-target -fitc --fit-ctx --poll "
    "--poll-batch --prio --prio-batch --keep --sleep-idle-seconds -cd --ctx-size-draft "
    "-ngld --gpu-layers-draft --n-gpu-layers-draft -s --seed -dt --defrag-thold "
    "--draft-min --draft-n-min --draft-p-min --spec-draft-n-min --spec-draft-p-min",
    False: "--jinja --metrics --slots --no-slots --props --no-webui --webui --log-disable "
    "--log-prefix --log-timestamps -v --verbose --log-verbose -cb --cont-batching --no-warmup "
    "--warmup --mmap --no-context-shift --embedding --embeddings --rerank --reranking "
    "--no-perf --offline --swa-full --mmproj-auto --mmproj-offload --repack --kv-offload "
    "--no-op-offload --op-offload --direct-io -dio --no-direct-io",
}
# Whose value is read like that is no loss: it is what happens here.
NEUTRAL: Mapping[str, tuple[str, ...]] = {
    "--reasoning-format": ("auto", "deepseek", "deepseek-legacy"),
    "-rea --reasoning": ("auto", "on"),
    "--rope-scaling": ("none",),
    "-n --predict --n-predict": ("-1", "-2"),
}
_VALUE = re.compile(r"[^-]|-[\d.]+$")  # numbers may be negative


def _by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for names, value in table.items() for name in names.split()}


def _of_sampling() -> Iterator[tuple[str, Setting]]:
    """Flags that are called as the numbers in requests."""
    for name, field in SAMPLING.items():
        kind = type(getattr(samplers.NEUTRAL, field))
        if kind in (int, float):
            yield f"--{name.replace('_', '-')}", (f"sampling.{field}", kind)


_VALUES: Mapping[str, Setting] = {**dict(_of_sampling()), **_by_name(VALUES)}
_READ, _SWITCHES, _NEUTRAL = _by_name(READ), _by_name(SWITCHES), _by_name(NEUTRAL)
_PASSED = {name for names in PASSED_OVER.values() for name in names.split()}
_ALONE = {*_SWITCHES, *PASSED_OVER[False].split()}


def is_one(command: str) -> bool:
    """Whether `command` starts a llama-server itself, not in a container or by a shell."""
    with suppress(ValueError):
        words = shlex.split(command)
        program = PurePath(words[0].replace("\\", "/")).name if words else ""
        return program.startswith("llama-server")  # people keep several: llama-server-b6000
    return False


def native(command: str) -> Imported:
    """The model that `command` serves, as an entry of `models`, and flags that have no equal.

    Raises NotAModel.
    """
    line = _Line()
    for flag, value in _flags(shlex.split(command.replace("\\\n", " "))[1:]):
        line.take(flag, value)
    return Imported(line.entry(), tuple(dict.fromkeys(line.lacking)))


def _flags(words: list[str]) -> Iterator[tuple[str, str]]:
    """Each flag and its value, which may be none. One that isn't known takes what is no flag."""
    while words:
        flag, equals, value = words.pop(0).partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if not flag.startswith("-"):
            raise NotAModel(f"{flag!r} belongs to no flag")
        if flag.startswith("--") and equals:
            yield flag, value
        else:
            takes = words and flag not in _ALONE and _VALUE.match(words[0])
            yield flag, words.pop(0) if takes else ""


class _Line:
    """What was read of a command line."""

    def __init__(self) -> None:
        self.found: Data = {}
        self.lacking: list[str] = []

    def take(self, flag: str, value: str) -> None:
        """A flag. Raises NotAModel for a value that llama-server wouldn't take."""
        try:
            if flag in _SWITCHES:
                self._put(*_SWITCHES[flag])
            elif flag in _READ:
                getattr(self, f"_{_READ[flag]}")(flag, value)
            elif flag in _VALUES:
                place, read = _VALUES[flag]
                self._put(place, read(value))
            elif flag not in _PASSED and value not in _NEUTRAL.get(flag, ()):
                self._lacks(flag, value)
        except (ValueError, msgspec.DecodeError):
            raise NotAModel(f"{flag} {value}: not a value of it") from None

    def entry(self) -> Data:
        """The entry of `models`. Raises NotAModel where no file is named."""
        found = self.found
        if "path" not in found:
            raise NotAModel("it names no file (`-m`, `-hf`)")
        slots, context = found.pop("slots", 0), found.pop("context", 0)
        unified = found.pop("unified", slots < 1)
        if slots > 0:
            self._put("options.max_concurrent", slots)
        if context > 0:
            self._put("options.cache_tokens", context)
            self._put("options.context_length", context if unified else max(1, context // slots))
        return found

    def _put(self, place: str, value: Any) -> None:
        data = self.found
        *outer, last = place.split(".")
        for name in outer:
            data = data.setdefault(name, {})
        data[last] = value

    def _lacks(self, flag: str, value: str) -> None:
        self.lacking.append(f"{flag} {value}".rstrip() + " has no equal")

    def _hub_file(self, flag: str, value: str) -> None:
        scheme, _, rest = str(self.found.get("path", "")).partition(":")
        if scheme != "hf":
            raise NotAModel(f"{flag} stands before -hf")
        self._put("path", f"hf:{rest.partition(':')[0]}:{value}")

    def _layers(self, _: str, value: str) -> None:
        if value not in ("auto", "all") and int(value) < ALL_LAYERS:
            self._put("options.gpu_layers", int(value))  # all are taken anyway, where they fit

    def _device(self, flag: str, value: str) -> None:
        number = value.removeprefix("CUDA")
        if value == "none":
            self._put("options.gpu_layers", 0)
        elif number.isdigit():
            self._put("options.main_gpu", int(number))
        else:
            self._lacks(flag, value)

    def _split(self, flag: str, value: str) -> None:
        if value == "none":
            self.found.setdefault("options", {}).setdefault("main_gpu", 0)
        elif value != "layer":
            self._lacks(flag, value)

    def _adapter(self, _: str, value: str) -> None:
        for one in value.split(","):
            file, _, scale = one.partition(":")
            name = PurePath(file).stem.replace(".", "_")  # places are divided by dots
            self._put(f"options.adapters.{name}", file)
            if scale:
                self._put(f"options.adapter_scaling.{name}", float(scale))

    def _tensors(self, flag: str, value: str) -> None:
        pattern, _, device = value.partition("=")
        if "exps" in pattern and device == "CPU" and not re.search(r"\d", pattern):
            self._put("options.cpu_experts", EVERY_EXPERT)
        else:
            self._lacks(flag, value)

    def _budget(self, flag: str, value: str) -> None:
        if value == "0":
            self._put("template_kwargs.enable_thinking", value=False)
        elif value != "-1":
            self._lacks(flag, value)

    def _drafts(self, flag: str, value: str) -> None:
        if value.startswith("ngram"):
            self._put("options.speculation.mode", "ngram")
        elif value not in ("none", "draft"):
            self._lacks(flag, value)
