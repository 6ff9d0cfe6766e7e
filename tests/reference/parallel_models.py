"""Small random models that write all tokens at once, for the tests beside this file."""

from __future__ import annotations

from typing import Any

import torch

from weft.config.registry import build
from weft.data.batch import BOS, EOS, PAD, UNK, Layout, PairBatch, Source
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.ngram_blocking_and_rules import Constraint, ForbidTokens
from weft.decoding.search_loop import EAGER, SearchRequest, StepRunner
from weft.decoding.search_methods import Search
from weft.decoding.token_selection import LengthLimits
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_encoder_decoder
from weft.models.nonautoregressive import NonAutoregressiveDecoder

VOCABULARY = 14
BLANK = VOCABULARY - 1
STACK = {"dim": 16, "heads": 2, "feedforward": 24, "layers": 2, "dropout": 0.0}
CANVASES: dict[str, dict[str, Any]] = {
    "ratio": {"kind": "ratio", "ratio": 1.5, "extra": 2},
    "length": {"kind": "length", "offsets": 4},
    "copied": {"kind": "length", "offsets": 4, "reads": "source"},
    "fertility": {"kind": "fertility", "most": 3},
    "upsampled": {"kind": "upsampled"},
}
SOURCES = [[5, 6, 7, 8, EOS], [9, 4, EOS], [4, 4, 10, 11, 12, 5, EOS]]
USUAL = [ForbidTokens([PAD, BOS, UNK])]


def make(canvas: str, /, **decoder: Any) -> Model:
    torch.manual_seed(3)
    spec = {
        "kind": "composed",
        "share_embeddings": "all",
        "encoder": {"kind": "transformer", **STACK},
        "decoder": {"kind": "parallel", **STACK, "canvas": CANVASES[canvas], **decoder},
    }
    return build_encoder_decoder(spec, Sizes(VOCABULARY, VOCABULARY, True)).eval()


def sources(rows: list[list[int]], extent: int = 0) -> Source:
    extent = max(extent, *map(len, rows))
    values = torch.tensor([[*row, *[PAD] * (extent - len(row))] for row in rows])
    return Source(values, Layout.padded([len(row) for row in rows], extent))


def limits(rows: list[list[int]], longest: int = 20) -> LengthLimits:
    count = len(rows)
    names = torch.tensor([sum(row) for row in rows])  # the number of a sentence follows from the sentence
    return LengthLimits(torch.full((count,), longest), torch.zeros(count, dtype=torch.long), names)


def decoder_of(model: Model) -> NonAutoregressiveDecoder:
    assert isinstance(model.decoder, NonAutoregressiveDecoder)
    return model.decoder


@torch.inference_mode()
def found(
    model: Model,
    search: str,
    rows: list[list[int]],
    best: int = 1,
    extent: int = 0,
    more: list[Constraint] | None = None,
    runner: StepRunner = EAGER,
    **options: Any,
) -> list[list[Hypothesis]]:
    method: Search = build("weft.decoding:SEARCHES", {"kind": search, **options})
    encoded = model.encode(sources(rows, extent))
    first = torch.full((len(rows), 1), BOS)
    constraints = [*USUAL, *(more or [])]
    asked: dict[str, Any] = {"limits": limits(rows), "n_best": best, "constraints": constraints, "runner": runner}
    return method.find(model.decoder, encoded, SearchRequest(prefix=first, **asked))[0]


def search_of(canvas: str) -> tuple[str, dict[str, Any]]:
    return {"upsampled": ("ctc_beam", {"width": 4}), "ratio": ("one_pass", {})}.get(canvas, ("one_pass", {"lengths": 3}))


def pairs(targets: list[list[int]]) -> PairBatch:
    extent = max(len(row) for row in targets) + 1
    labels = torch.tensor([[*row, EOS, *[PAD] * (extent - len(row) - 1)] for row in targets])
    fed = torch.cat([torch.full_like(labels[:, :1], BOS), labels[:, :-1]], 1)
    return PairBatch(torch.arange(3), sources(SOURCES), fed, Layout.padded([len(row) + 1 for row in targets]), labels)
