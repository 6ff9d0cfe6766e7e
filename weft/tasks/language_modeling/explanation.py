"""Explanation of how a language model reads a text: the probability of each token, likely others, and causal attention.

Shapes: T tokens · V vocabulary · H heads.
"""

import math
from dataclasses import dataclass
from html import escape

import torch

from weft.attention.core.weight_recorder import first_row, record
from weft.errors import DataError
from weft.explain.explanation import Weights, right_to_left, shown
from weft.explain.html_page import head_images, meter, notes
from weft.tasks.language_modeling.predictor import GenerationPredictor

CANDIDATES = 5
"""The likeliest tokens that are listed for each position."""

MOST = 256
"""The most tokens of a text that are shown: its last ones."""


@dataclass(frozen=True)
class ReadText:
    """A text as a language model reads it.

    tokens: T tokens · probabilities: of all but the first, each given the tokens before it · candidates: the likeliest tokens
    behind each of the T tokens · attention: weights [H, T, T] of each causal layer that has any · left_out: the number of
    tokens before these.
    """

    tokens: list[str]
    probabilities: list[float]
    candidates: list[list[tuple[str, float]]]
    attention: dict[str, Weights]
    left_out: int = 0

    @property
    def perplexity(self) -> float:
        """Of all tokens that have a probability; infinite if one of them is impossible."""
        if 0 in self.probabilities:
            return math.inf
        return math.exp(-sum(map(math.log, self.probabilities)) / max(1, len(self.probabilities)))


@torch.inference_mode()
def read_text(predictor: GenerationPredictor, text: str) -> ReadText:
    """Reads the end of a text, as many tokens as the model reads at once."""
    if not text.strip():
        raise DataError("there is nothing to explain in an empty text; give a text that the model is to read")
    model, tokenizer, every = predictor.model, predictor.tokenizer, predictor.encode(text)
    ids = every[-min(MOST, predictor.context or MOST) :]
    with predictor.options.arithmetic(next(model.parameters()).dtype), record(model) as recorded:
        hidden = model(torch.tensor([ids], device=model.device)).hidden
        chances = model.decoder.logits(hidden)[0].float().softmax(-1).cpu()
    values, places = chances.topk(min(CANDIDATES, chances.size(-1)))
    candidates = [
        list(zip(tokenizer.tokens(row), shares, strict=True))
        for row, shares in zip(places.tolist(), values.tolist(), strict=True)
    ]
    weights, uses = first_row(model, recorded)
    square = {name: each for name, each in weights.items() if each.shape[1:] == (len(ids), len(ids)) and uses[name] == "causal"}
    probabilities = [float(chances[place, token]) for place, token in enumerate(ids[1:])]
    return ReadText(tokenizer.tokens(ids), probabilities, candidates, square, len(every) - len(ids))


def reading_page(text: ReadText) -> str:
    """The text, darker where it surprises the model; its tokens with likely others; and where each head of a layer looks."""
    remarks = [f"only the last {len(text.tokens):,} tokens are shown"] if text.left_out else []
    if not text.attention:
        remarks.append("the model shows no attention weights")
    listed = [_row(token, share, before) for token, share, before in zip(text.tokens[1:], text.probabilities, text.candidates)]
    table = "".join([*listed, _row("…", None, text.candidates[-1])])
    pictures = head_images(text.attention, dict.fromkeys(text.attention, "causal"))
    head = "<tr><th>token</th><th>probability</th><th></th><th>likeliest there</th></tr>\n"
    measured = (
        f"<p>perplexity {text.perplexity:.2f} over {len(text.probabilities):,} tokens</p>\n" if text.probabilities else ""
    )
    return f"{_shaded(text)}{measured}{notes(remarks)}<table>{head}{table}</table>\n{pictures}"


def _shaded(text: ReadText) -> str:
    """The tokens of the text. The first has no probability."""
    first, *rest = (escape(shown(token)) for token in text.tokens)
    spans = " ".join(
        f'<span style="background:rgba(var(--heat),{1 - share:.3f})" title="{share:.4f}">{token}</span>'
        for token, share in zip(rest, text.probabilities, strict=True)
    )
    direction = ' dir="rtl"' if right_to_left(" ".join(text.tokens)) else ""
    return f"<p{direction}><span>{first}</span> {spans}</p>\n"


def _row(token: str, share: float | None, candidates: list[tuple[str, float]]) -> str:
    others = ", ".join(f"{escape(shown(name))} {chance:.3f}" for name, chance in candidates)
    own = "<td></td><td></td>" if share is None else f"<td>{share:.4f}</td><td>{meter(share)}</td>"
    return f"<tr><th>{escape(shown(token))}</th>{own}<td>{others}</td></tr>\n"
