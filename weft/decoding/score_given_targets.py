"""Teacher forcing of given targets: the log-probabilities at each token, the attention weights, and scores of whole texts.

Shapes: T target tokens · S source tokens · V vocabulary · H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.attention.base import View
from weft.attention.core.weight_recorder import first_row, record
from weft.data.batch import BOS, EOS, Source, pad
from weft.data.copy_vocabulary import CopyIds
from weft.data.tokenizers import Tokenizer
from weft.decoding.predictor import Weights
from weft.errors import ConfigError
from weft.losses.ctc_loss import best_alignment
from weft.losses.log_likelihood import text_log_likelihoods
from weft.models.base import Model
from weft.models.nonautoregressive import NonAutoregressiveDecoder


@dataclass
class TeacherForced:
    """Teacher forcing of one target.

    logp [T, V]: log-probabilities of all tokens at every position, or scores if the decoder gives scores · weights [H, T, S] of
    each layer that has any, and what they show.
    """

    logp: Tensor
    weights: dict[str, Weights]
    uses: dict[str, View]


@torch.inference_mode()
def teacher_force(model: Model, source: Sequence[int], target: Sequence[int]) -> TeacherForced:
    """Feeds `target` to the decoder. Both are ids as the model reads and writes them.

    A decoder that writes all tokens at once reads blanks instead, as in its first pass.
    """
    device = model.device
    if isinstance(model.decoder, NonAutoregressiveDecoder):
        return _force_at_once(model, model.decoder, source, target)
    fed = torch.tensor([[BOS, *target[:-1]]], device=device)
    with record(model) as recorded:
        encoded = model.encode(Source(torch.tensor([list(source)], device=device)))
        logits = model.decoder(fed, model.decoder.init_state(encoded)).logits
    return TeacherForced(model.decoder.token_scores(logits[0]), *first_row(model, recorded))


def _force_at_once(
    model: Model, decoder: NonAutoregressiveDecoder, source: Sequence[int], target: Sequence[int]
) -> TeacherForced:
    """The first pass of a decoder over blanks. Of a path of CTC, the positions that write the tokens of the target."""
    device, size = model.device, max(1, len(target))
    with record(model) as recorded:
        encoded = model.encode(Source(torch.tensor([list(source)], device=device)))
        evenly = torch.arange(size, device=device) * encoded.memory.size(1) // size
        fertilities = evenly.bincount(minlength=encoded.memory.size(1))[None]
        canvas = decoder.canvases.known(encoded, torch.tensor([size], device=device), size, fertilities)
        blanks = torch.full_like(canvas.layout.positions, decoder.blank)
        logits = decoder.logits(decoder.hidden_states(blanks, decoder.open(encoded, canvas), canvas.layout).hidden)
    places = torch.arange(len(target), device=device)
    if decoder.canvases.holds == "path":
        places = _places(logits, canvas.layout.lengths, target, decoder.blank)
    weights, uses = first_row(model, recorded)
    rows = places.cpu().numpy()
    for name, use in uses.items():
        if use != "encoder":
            weights[name] = weights[name][:, rows]
        if use == "target":
            weights[name] = weights[name][..., rows]
    return TeacherForced(logits[0, places].float().log_softmax(-1)[:, : decoder.blank], weights, uses)  # the blank is no token


def _places(logits: Tensor, lengths: Tensor, target: Sequence[int], blank: int) -> Tensor:
    """[T]: the first position of each token in the best path of the target, or even places if it has no path."""
    tokens = torch.tensor([[token for token in target if token != EOS]], device=logits.device, dtype=torch.long)
    path = best_alignment(logits, lengths, tokens, torch.tensor([tokens.size(1)], device=logits.device), blank=blank)[0]
    before = torch.cat([path.new_full((1,), blank), path[:-1]])
    first = ((path != blank) & (path != before)).nonzero()[:, 0]
    if len(first) == len(target):
        return first
    return torch.arange(len(target), device=logits.device) * logits.size(1) // max(1, len(target))


def score_texts(
    model: Model, source: Sequence[int], texts: Sequence[str], target: Tokenizer, words: Sequence[str]
) -> list[tuple[float, int]]:
    """The log-probability of each text given the source, and its number of tokens, EOS included, in a batch of their own.

    words: the unknown words of the source, if the model copies them. Texts longer than the model's positions are cut off.
    """
    if model.decoder.parallel:
        raise ConfigError("a model that writes all tokens at once cannot score given texts; name another run")
    most, copied = model.max_target and model.max_target - 1, CopyIds(target, words)
    rows = [[*copied.find(text, ids)[:most], EOS] for text, ids in zip(texts, target.encode_batch(list(texts)))]
    encoded = model.encode(Source(pad([source] * len(rows)).to(model.device)))
    scores = text_log_likelihoods(model.decoder, encoded, rows).sum(1).tolist()
    return [(score, len(row)) for score, row in zip(scores, rows, strict=True)]
