"""The scripted engine, for tests, and for trying the gateway without a model: tokens are bytes, the
answer is the first line of its script whose `when` is in the prompt.

A script is a JSON file named `*.script.json` (see `Script`). There is no engine to import, so this
module is both of those that `backends.contract.catalog` asks for.
"""

import re
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import anyio
import msgspec

from backends.contract.catalog import (
    CPU,
    Cards,
    LoadFacts,
    ModelFiles,
    Placement,
    Translation,
    as_it_is,
)
from backends.contract.errors import BackendError, GenerationFailed
from backends.contract.protocol import (
    Candidate,
    Generation,
    Image,
    MemoryNeed,
    Modality,
    ModelContainer,
    ModelInfo,
    Progress,
    Report,
    Scored,
    Tokenizer,
    TokenLogprob,
)
from backends.engines.constraints import Mask
from backends.engines.driver import DrivenContainer
from backends.engines.engine import JobFailed, PromptScored, Token
from config.engines import ScriptedOptions
from config.values import alike

SUFFIX = re.compile(r"\.script\.json$")
COMPANIONS: tuple[str, ...] = ()


# Of a script that names no template: ChatML, with tools in Hermes' form.
CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou can call these functions:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nWrite each call as a JSON object inside tags:\\n<tool_call>\\n' }}
    {{- '{"name": <function name>, "arguments": <its arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if loop.first and tools and message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first }}
            {{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
            {{- call.function.arguments + '}\\n</tool_call>' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said when the prompt contains `when`. After `fail_after` tokens it breaks. `{images}`
    describes the pictures.
    """

    say: str
    when: str = ""
    fail_after: int | None = None


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. The first line whose `when` is in the prompt is said; tokens are single bytes."""

    lines: tuple[Line, ...]
    context_length: int = 4096
    chat_template: str | None = CHATML
    size_bytes: int = 0  # the size it claims
    modalities: tuple[Modality, ...] = ("text",)


def recognise(path: Path) -> ModelFiles | None:
    """The script at `path`; None for anything else. Raises msgspec.ValidationError for a broken
    script.
    """
    if not SUFFIX.search(path.name) or not path.is_file():
        return None
    script = read(path)
    return ModelFiles(
        path=path,
        backend="scripted",
        format="script",
        architecture="script",
        size_bytes=script.size_bytes or path.stat().st_size,
        context_length=script.context_length,
        cache_bytes_per_token=0,
        modalities=script.modalities,
        chat_template=script.chat_template,
        parts=(path,),
    )


def read(path: Path) -> Script:
    """The script in the file."""
    return msgspec.json.decode(path.read_bytes(), type=Script)


def fitted(files: ModelFiles, options: ScriptedOptions) -> ModelFiles:
    """No option changes what the model can do."""
    return files


def placements(
    files: ModelFiles | None, options: ScriptedOptions, cards: Cards
) -> Sequence[Placement]:
    """See `FilesModule`."""
    return ({CPU: 1.0},)


def placed(options: ScriptedOptions, placement: Placement, cards: Cards) -> ScriptedOptions:
    """See `FilesModule`."""
    return options


def estimate(files: ModelFiles, options: ScriptedOptions) -> MemoryNeed:
    """A script takes the memory that it claims."""
    return MemoryNeed(weights=files.size_bytes, cache=0, engine=0)


INSTALLATION = None
LOAD_OPTIONS: Mapping[str, Translation] = {}


fit = as_it_is


def facts(options: ScriptedOptions) -> LoadFacts:
    """See `FilesModule.facts`."""
    return LoadFacts()


def vocabulary(path: Path) -> Mapping[str, bytes]:
    """See `FilesModule.vocabulary`: none is needed."""
    return {}


END = 256  # the token after the 256 bytes
VOCABULARY = 257
SILENCE = Line(say="")
ALL = (1 << VOCABULARY) - 1
# Fallback bytes where the script has none.
ENDINGS: tuple[int, ...] = (END, *b'":')
OTHERS: tuple[int, ...] = (*b"}])>0123456789,", *range(33, 128), *range(33), *range(128, 256))


IMAGES = "{images}"  # in a line: the pictures' sizes and first pixels
IMAGE_TOKENS = 64  # of the prompt, for each picture; as if there were an image encoder


def seen(images: Sequence[Image]) -> str:
    """Each picture's size and first pixel: "4x3 #ff0000"."""
    return ", ".join(f"{one.width}x{one.height} #{one.rgb[:3].hex()}" for one in images)


class Speaker:
    """One job: what is left to say."""

    def __init__(self, job: Generation, line: Line, mask: Mask | None = None) -> None:
        self.job = job
        self.mask = mask
        said = line.say.replace(IMAGES, seen(job.images)) if IMAGES in line.say else line.say
        self.script = (*said.encode(), END)
        self.at = 0  # in the script
        self.forced: list[int] = []
        self.filled: Counter[int] = Counter()  # what was said for want of a script
        self.fail_after = line.fail_after
        self.said = 0
        self.scored = job.prompt_logprobs is None

    def allowed(self, mask: Mask) -> int:
        """A bit for each token that may come next."""
        return ALL if self.forced else int.from_bytes(mask.allowed(), "little")

    def next(self, allowed: int) -> int:
        """What is forced; the script's next byte if it may come; what brings a grammar to its
        end.
        """
        if self.said == self.fail_after:
            raise GenerationFailed(f"the script fails after {self.fail_after} tokens")
        self.said += 1
        if self.forced:
            return self.forced.pop(0)
        wanted = self.script[self.at] if self.at < len(self.script) else END
        if allowed >> wanted & 1:
            self.at += 1
            return wanted
        return self._onwards(allowed)

    def _onwards(self, allowed: int) -> int:
        """What ends a part, else what was said so least, that nothing goes on for ever."""
        left = [token for token in (*ENDINGS, *OTHERS) if allowed >> token & 1]
        token = left[0] if left[0] in ENDINGS else min(left, key=self.filled.__getitem__)
        self.filled[token] += 1
        return token

    def force(self, tokens: Sequence[int]) -> None:
        """`tokens` come next; a script that has them there has said them."""
        self.forced += tokens
        end = self.at + len(tokens)
        if self.mask is not None and self.script[self.at : end] == tuple(tokens):
            self.at = end


class ByteTokenizer:
    """A token for each byte."""

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        return tuple(text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes([token for token in tokens if token != END]).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        return b"" if token == END else bytes((token,))

    def ends(self, token: int) -> bool:
        return token == END


class ScriptedEngine(ByteTokenizer):
    """See `backends.engines.engine.Engine`."""

    def __init__(self, files: ModelFiles, script: Script, options: ScriptedOptions) -> None:
        self._lines = script.lines
        self._pause = 1 / options.tokens_per_second if options.tokens_per_second else 0.0
        self._speakers: dict[int, Speaker] = {}
        self.info = alike(ModelInfo, files)(
            layers={},  # by device: where they lie isn't known
            context_length=options.context_length or files.context_length,
            max_concurrent=options.max_concurrent,
            vocab_size=VOCABULARY,
            longest_token_bytes=1,
            scores_prompts=True,
            constrains=True,
        )

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        prompt = self.detokenize(job.prompt)
        line = next((line for line in self._lines if line.when in prompt), SILENCE)
        self._speakers[key] = Speaker(job, line, mask)
        return len(job.prompt) + IMAGE_TOKENS * len(job.images)

    def step(self) -> Sequence[Token | PromptScored | JobFailed]:
        """All within the time that a step is to take."""
        begun = time.perf_counter()
        results: list[Token | PromptScored | JobFailed] = []
        for key, speaker in self._speakers.items():
            if not speaker.scored:
                speaker.scored = True
                scored = Scored(tuple(map(self._certain, speaker.job.prompt)))
                results.append(PromptScored(key, scored))
            self._say(key, speaker, results)
        if self._pause:
            time.sleep(max(0.0, begun + self._pause - time.perf_counter()))
        return results

    def _say(
        self, key: int, speaker: Speaker, results: list[Token | PromptScored | JobFailed]
    ) -> None:
        """One token, or all that are forced."""
        try:
            allowed = ALL if speaker.mask is None else speaker.allowed(speaker.mask)
        except BackendError as error:
            results.append(JobFailed(key, error))
            return
        for _ in range(len(speaker.forced) or 1):
            token = speaker.next(allowed)
            logprob = None if speaker.job.logprobs is None else self._certain(token)
            results.append(Token(key, token, logprob))

    def _certain(self, token: int) -> TokenLogprob:
        """A script leaves no choice: everything has probability one."""
        return TokenLogprob(Candidate(token, self.piece(token), 0.0))

    def force(self, key: int, tokens: Sequence[int]) -> None:
        self._speakers[key].force(tokens)

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        """A script can't be said otherwise."""
        raise NotImplementedError

    def release(self, key: int) -> int:
        del self._speakers[key]
        return 0

    def recover(self) -> None:
        self._speakers.clear()

    def close(self) -> None:
        self._speakers.clear()


PARTS = 10


async def load(files: ModelFiles, options: ScriptedOptions, report: Report) -> ModelContainer:
    """Takes `load_seconds`, in ten parts."""
    for part in range(PARTS):
        report(Progress("weights", files.size_bytes * part // PARTS, files.size_bytes))
        await anyio.sleep(options.load_seconds / PARTS)
    report(Progress("weights", files.size_bytes, files.size_bytes))
    return DrivenContainer(ScriptedEngine(files, read(files.path), options))


def preload() -> None:
    """See `ContainerModule.preload`."""


def tokenizer(info: ModelInfo) -> Tokenizer:
    """See `ContainerModule.tokenizer`: the same for all scripts."""
    return ByteTokenizer()
