"""The scripted engine: tokens are bytes, the answer is the first script line whose `when` is in the
prompt.
"""

import time
from collections.abc import Sequence

from backends.catalog import ModelFiles
from backends.driver import PromptScored, Token
from backends.errors import GenerationFailed
from backends.protocol import Candidate, Generation, Image, ModelInfo, Scored, TokenLogprob
from backends.scripted.files import Line, Script
from config.engines import ScriptedOptions

END = 256  # the token after the 256 bytes
VOCABULARY = 257
SILENCE = Line(say="")


IMAGES = "{images}"  # in a line: what the pictures look like
IMAGE_TOKENS = 64  # of the prompt, for each picture; as if there were a vision tower


def seen(images: Sequence[Image]) -> str:
    """Each picture's size and first pixel: "4x3 #ff0000"."""
    return ", ".join(f"{one.width}x{one.height} #{one.rgb[:3].hex()}" for one in images)


def _prompt_tokens(job: Generation) -> int:
    return len(job.prompt) + IMAGE_TOKENS * len(job.images)


class Speaker:
    """One job: what is left to say."""

    def __init__(self, job: Generation, line: Line) -> None:
        self.job = job
        self.rest = [*line.say.replace(IMAGES, seen(job.images)).encode(), END]
        self.fail_after = line.fail_after
        self.said = 0
        self.scored = job.prompt_logprobs is None

    def next(self) -> int:
        if self.said == self.fail_after:
            raise GenerationFailed(f"the script says to fail after {self.fail_after} tokens")
        self.said += 1
        return self.rest.pop(0) if self.rest else END


class ScriptedEngine:
    """See `backends.driver.Engine`."""

    def __init__(self, files: ModelFiles, script: Script, options: ScriptedOptions) -> None:
        self._lines = script.lines
        self._pause = 1 / options.tokens_per_second if options.tokens_per_second else 0.0
        self._speakers: dict[int, Speaker] = {}
        self.info = ModelInfo(
            backend="scripted",
            format=files.format,
            architecture=files.architecture,
            context_length=options.context_length or files.context_length,
            max_concurrent=options.max_concurrent,
            vocab_size=VOCABULARY,
            longest_token_bytes=1,
            size_bytes=files.size_bytes,
            chat_template=files.chat_template,
            modalities=files.modalities,
            scores_prompts=True,
        )

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        return tuple(text.encode())

    def detokenize(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token != END).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        return b"" if token == END else bytes((token,))

    def ends(self, token: int) -> bool:
        return token == END

    def admit(self, key: int, job: Generation) -> int:
        prompt = self.detokenize(job.prompt)
        line = next((line for line in self._lines if line.when in prompt), SILENCE)
        self._speakers[key] = Speaker(job, line)
        return _prompt_tokens(job)

    def step(self) -> Sequence[Token | PromptScored]:
        if self._pause:
            time.sleep(self._pause)
        scored = [self._scored(key, one) for key, one in self._speakers.items() if not one.scored]
        return [*scored, *(self._said(key, one) for key, one in self._speakers.items())]

    def _scored(self, key: int, speaker: Speaker) -> PromptScored:
        speaker.scored = True
        return PromptScored(key, Scored(tuple(map(self._certain, speaker.job.prompt))))

    def _certain(self, token: int) -> TokenLogprob:
        """A script leaves no choice: everything has probability one."""
        return TokenLogprob(Candidate(token, self.piece(token), 0.0))

    def _said(self, key: int, speaker: Speaker) -> Token:
        token = speaker.next()
        if speaker.job.logprobs is None:
            return Token(key, token)
        return Token(key, token, self._certain(token))

    def force(self, key: int, tokens: Sequence[int]) -> None:
        self._speakers[key].rest[:0] = tokens

    def release(self, key: int) -> int:
        del self._speakers[key]
        return 0

    def recover(self) -> None:
        self._speakers.clear()

    def close(self) -> None:
        self._speakers.clear()
