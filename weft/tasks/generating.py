"""Going on with a text: a language model, a way of choosing, and the search loop.

Shapes: G texts · K hypotheses a text · B = G·K rows · V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.batch import EOS, Layout
from weft.config.sections import DecodeSection
from weft.data.tokenizer import Tokenizer
from weft.models.lm import LanguageModel
from weft.search.choosers import Choice, Chooser, Found, Limits
from weft.search.loop import generate
from weft.state import State
from weft.tasks.choosing import chooser, constraints
from weft.tasks.placing import settled

START = "\n"
"""What a text is taken to go on from where nothing is given: the end of a line."""

LINE = re.compile(r"[^\n]*\n|[^\n]+")

UNLIKELY = -1e4
"""A logit that is never chosen, and yet a number."""

Hear = Callable[[str], None]


@dataclass
class Generated:
    """How a text went on: text, without the prompt · ids of it · score, its log-probability."""

    prompt: str
    text: str
    ids: list[int]
    score: float


class Endless:
    """A text that goes on as long as it is asked to: its end is never chosen, but being cut off is no fault."""

    def start(self, rows: int, device: torch.device) -> State:
        return torch.full((rows, 1), EOS, device=device)

    def __call__(self, logits: Tensor, tokens: Tensor, state: State, layout: Layout | None) -> tuple[Tensor, State]:
        return logits.scatter(1, state, UNLIKELY), state


class Overheard:
    """A chooser that tells what it chooses for the first text as soon as it has, which waits for the device."""

    def __init__(self, chooser: Chooser, hear: Callable[[int], None]) -> None:
        self.chooser, self.width, self.hear = chooser, chooser.width, hear

    def start(self, sources: int, device: torch.device) -> Found:
        return self.chooser.start(sources, device)

    def step(self, logits: Tensor, norm: Tensor, found: Found, t: Tensor, limits: Limits) -> Choice:
        choice = self.chooser.step(logits, norm, found, t, limits)
        self.hear(int(choice.tokens[0, 0]))
        return choice


class Scribe:
    """Writes ids down as text, as they come. What has not become whole characters yet is kept back."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
        """`ids` stand before, and are not written."""
        self.tokenizer, self.said = tokenizer, ""
        self.line: list[int] = []
        for token in ids:
            self(token)

    def __call__(self, token: int) -> str:
        """The text that this token adds."""
        self.line.append(token)
        # Line by line, as texts are encoded: to a subword every line begins with a space that is not in the text.
        whole = self.tokenizer.decode(self.line)
        if whole.endswith("\ufffd"):
            return ""
        new, self.said = whole[len(self.said) :], whole
        if whole.endswith("\n"):
            self.line, self.said = [], ""
        return new


class Generating:
    """A language model with its tokenizer and the settings of search.

    context: the most tokens that the model is given at once; None if its state has one size, however much it has read. A longer
    text is generated in windows: when one is full, the second half of it is read again, and the text goes on from there.
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, options: DecodeSection, context: int | None) -> None:
        self.model, self.tokenizer, self.context = model, tokenizer, context
        self.options = settled(options, model.device)

    def generate(self, prompt: str, tokens: int, *, count: int = 1, hear: Hear | None = None) -> list[Generated]:
        """So many texts that go on from the prompt with so many tokens each.

        `hear` is told the text of the first as it comes; a beam is decided only at the end of a window, so there it waits.
        """
        before = self.encode(prompt)
        texts, scores = [list(before) for _ in range(count)], [0.0] * count
        scribe = Scribe(self.tokenizer, before)
        tell = None if hear is None else (lambda token: hear(scribe(token)))
        window = 0
        while (left := len(before) + tokens - len(texts[0])) > 0:
            read = [self._kept(ids) for ids in texts]
            room = left if self.context is None else min(left, max(1, self.context - len(read[0])))
            said = self._window(read, room, window, tell)
            for place, (ids, score) in enumerate(said):
                texts[place] += ids
                scores[place] += score
            window += 1
        return [self._written(prompt, before, *pair) for pair in zip(texts, scores, strict=True)]

    def encode(self, prompt: str) -> list[int]:
        """The ids of a text, line by line; those of a line's end where there is none."""
        lines = self.tokenizer.encode_batch(LINE.findall(prompt or START))
        return [token for ids in lines for token in ids] or self.tokenizer.encode(START)

    def _kept(self, ids: list[int]) -> list[int]:
        if self.context is None or len(ids) < self.context:
            return ids
        return ids[-max(1, self.context // 2) :]

    def _window(
        self, texts: list[list[int]], room: int, window: int, tell: Callable[[int], None] | None
    ) -> list[tuple[list[int], float]]:
        """What each text goes on with, all of them as long, and its log-probability."""
        device, options = self.model.device, self.options
        # What is drawn depends on the number of the text and of the window, and not on how many texts there are.
        numbers = torch.arange(len(texts), device=device) + (window << 32)
        longest = torch.full_like(numbers, room)
        # Nothing is divided by the length: all texts are as long.
        choosing = chooser(options.model_copy(update={"n_best": 1, "length_penalty": 0.0}))
        single = options.sample or options.beam == 1
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            found, _ = generate(
                self.model.decoder,
                self.model.nothing(len(texts)),
                Overheard(choosing, tell) if tell and single else choosing,
                first=torch.tensor(texts, device=device),
                limits=Limits(longest, torch.zeros_like(longest), numbers),
                constraints=[*constraints(options, len(texts[0]) + room), Endless()],
                best=1,
            )
        best = [hypotheses[0] for hypotheses in found]
        if tell and not single:
            for token in best[0].tokens:
                tell(token)
        return [(each.tokens, each.score) for each in best]

    def _written(self, prompt: str, before: list[int], ids: list[int], score: float) -> Generated:
        scribe, new = Scribe(self.tokenizer, before), ids[len(before) :]
        return Generated(prompt, "".join(scribe(token) for token in new), new, score)
