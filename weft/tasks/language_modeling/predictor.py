"""Text generation: a language model continues prompts.

Shapes: G texts · K hypotheses per text · B = G·K rows · V vocabulary.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.data.batch import EOS, Layout
from weft.data.tokenizers import Tokenizer
from weft.decoding.decoding_options import DecodingOptions, Warn
from weft.decoding.generate import GenerationRequest, generate
from weft.decoding.predictor import BatchItem, Predictor, json_number, refuse
from weft.decoding.search_loop import Cancellation
from weft.decoding.token_selection import LengthLimits, Selection, SelectorState, TokenSelector
from weft.errors import ConfigError
from weft.layers.decoder_state import State
from weft.losses.log_likelihood import text_log_likelihoods
from weft.models.language_model import LanguageModel

START = "\n"
"""The prompt of a text that has none: the end of a line."""

LINE = re.compile(r"[^\n]*\n|[^\n]+")

UNLIKELY = -1e4
"""A logit that is never chosen but, unlike −inf, leaves the score a number."""


@dataclass
class Generated:
    """A continuation: text and ids without the prompt · score: the log-probability."""

    prompt: str
    text: str
    ids: list[int] = field(repr=False)
    score: float

    def document(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"prompt": self.prompt, "text": self.text, "score": json_number(self.score)}


@dataclass(frozen=True)
class Prompt:
    """A text to continue with `tokens` tokens. draw: which of several continuations of one prompt; samples differ by it."""

    text: str
    tokens: int
    draw: int = 0


@dataclass(eq=False)
class PromptPart(BatchItem):
    """The ids of a prompt, with the prompt itself."""

    prompt: Prompt = field(kw_only=True)


class NoEndOfText:
    """Never chooses the end of a text. A text that reaches its length is complete."""

    def init_state(self, rows: int, device: torch.device) -> State:
        return torch.full((rows, 1), EOS, device=device)

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        return logits.scatter(1, state, UNLIKELY), state


class StreamingSelector(TokenSelector):
    """A selector that reports each token of the first text at once, which waits for the device."""

    def __init__(self, selector: TokenSelector, on_token: Callable[[int], None]) -> None:
        self.selector, self.width, self.on_token = selector, selector.width, on_token

    def init_state(self, sources: int, device: torch.device) -> SelectorState:
        return self.selector.init_state(sources, device)

    def step(self, logits: Tensor, norm: Tensor, state: SelectorState, t: Tensor, limits: LengthLimits) -> Selection:
        choice = self.selector.step(logits, norm, state, t, limits)
        self.on_token(int(choice.tokens[0, 0]))
        return choice


class StreamingDetokenizer:
    """Decodes ids to text as they come. Bytes that are not a whole character yet are held back."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
        """`ids` come before the text and are not part of it."""
        self.tokenizer, self.text = tokenizer, ""
        self.line: list[int] = []
        for token in ids:
            self(token)

    def __call__(self, token: int) -> str:
        """The text that this token adds."""
        self.line.append(token)
        # Texts are encoded line by line: for subwords, every line begins with a space that is not in the text.
        whole = self.tokenizer.decode(self.line)
        if whole.endswith("\ufffd"):
            return ""
        new, self.text = whole[len(self.text) :], whole
        if whole.endswith("\n"):
            self.line, self.text = [], ""
        return new


class GenerationPredictor(Predictor[Prompt, Generated]):
    """A language model with its tokenizer.

    context: the most tokens the model reads at once; None if its state has a fixed size. A longer text is generated in windows:
    when a window is full, its second half is read again and the text continues from there.
    """

    forks = False

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        options: DecodingOptions,
        context: int | None,
        warn: Warn | None = None,
    ) -> None:
        super().__init__(model, options, warn)
        if options.rerank is not None:
            raise ConfigError("decode.rerank: texts of a language model have no source to rank them by; set it to none")
        options.search.wrap_decoder(model.decoder)  # fails now if the search cannot work with this decoder
        self.tokenizer, self.context = tokenizer, context

    def parse_input(self, line: str, *, tokens: int | None = None, draw: int = 0, **fields: Any) -> Prompt:
        refuse({name: value for name, value in fields.items() if name != "attention"}, "a prompt has no such field")
        return Prompt(line, self.options.config.max_length if tokens is None else tokens, draw)

    def encode_input(self, inputs: Sequence[Prompt], first_line: int) -> list[list[PromptPart]]:
        encoded = [(self.encode(prompt.text), prompt) for prompt in inputs]
        return [[PromptPart(ids, length=len(ids) + prompt.tokens, prompt=prompt)] for ids, prompt in encoded]

    def group(self, part: PromptPart) -> tuple[int, int]:
        """The texts of a batch are equally long at every step."""
        return len(part.ids), part.prompt.tokens

    def run(self, parts: list[PromptPart], control: Cancellation | None = None) -> list[Generated]:
        return self.generate([part.prompt for part in parts])

    def join_outputs(self, given: Prompt, parts: list[PromptPart], results: list[Generated]) -> Generated:
        return results[0] if results else Generated(given.text, "", [], 0.0)

    def generate(self, prompts: Sequence[Prompt], on_text: Callable[[str], None] | None = None) -> list[Generated]:
        """Continues prompts of one length. `on_text` receives the text of the first as it comes; a beam only knows its text at
        the end of a window, so there it waits."""
        before = [self.encode(prompt.text) for prompt in prompts]
        texts, scores = [list(ids) for ids in before], [0.0] * len(prompts)
        detokenizer = StreamingDetokenizer(self.tokenizer, before[0])
        on_token = None if on_text is None else (lambda token: on_text(detokenizer(token)))
        window, length = 0, len(before[0]) + prompts[0].tokens
        while (left := length - len(texts[0])) > 0:
            read, room = texts, left
            if self.context is not None:
                full = len(texts[0]) >= self.context
                read = [ids[-max(1, self.context // 2) :] for ids in texts] if full else texts
                room = min(left, max(1, self.context - len(read[0])))
            # Random numbers depend on the draw and the window, not on the number of texts.
            seeds = [prompt.draw + (window << 32) for prompt in prompts]
            for place, (ids, score) in enumerate(self._window(read, room, seeds, on_token)):
                texts[place] += ids
                scores[place] += score
            window += 1
        generated = []
        for prompt, first, ids, score in zip(prompts, before, texts, scores, strict=True):
            detokenizer, new = StreamingDetokenizer(self.tokenizer, first), ids[len(first) :]
            generated.append(Generated(prompt.text, "".join(detokenizer(token) for token in new), new, score))
        return generated

    def encode(self, prompt: str) -> list[int]:
        """The ids of a text, line by line; those of a line end if there is no text."""
        lines = self.tokenizer.encode_batch(LINE.findall(prompt or START))
        return [token for ids in lines for token in ids] or self.tokenizer.encode(START)

    def log_likelihoods_of(self, texts: Sequence[str]) -> list[float]:
        """The log-probability of each text after the end of a line. Of a text that is too long, the beginning is left out."""
        start = self.tokenizer.encode(START)
        rows = [ids[1 - self.context :] if self.context else ids for ids in map(self.encode, texts)]
        with self.arithmetic(1):
            scores = text_log_likelihoods(self.model.decoder, self.model.nothing(len(rows)), rows, [start] * len(rows))
        return [float(each) for each in scores.sum(1)]

    def _window(
        self, texts: list[list[int]], room: int, seeds: list[int], on_token: Callable[[int], None] | None
    ) -> list[tuple[list[int], float]]:
        """`room` further ids of each text, and their log-probability."""
        options = self.options
        # All texts have the same length, so scores are not divided by it.
        selector, final = options.search.selector(1, length_penalty=0.0), options.search.final(1)
        request = GenerationRequest(
            options.search,
            [room] * len(texts),
            prefixes=texts,
            seeds=seeds,
            no_repeat_ngram=options.config.no_repeat_ngram,
            constraints=[NoEndOfText()],
            selector=StreamingSelector(selector, on_token) if on_token and final else selector,
        )
        with options.arithmetic(next(self.model.parameters()).dtype):
            results, _ = generate(self.model, self.model.nothing(len(texts)), request)
        best = [hypotheses[0] for hypotheses in results]
        if on_token and not final:
            for token in best[0].tokens:
                on_token(token)
        return [(each.tokens, each.score) for each in best]
