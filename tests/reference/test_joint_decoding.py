"""Texts ranked by attention and CTC together: each score against its formula, one text at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from weft.data.batch import BOS, EOS, Layout, Source
from weft.decoding.ctc_decoding import IMPOSSIBLE, rescore_with_ctc
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_encoder_decoder
from weft.tasks.transcription.model import JointModel

SPEC = {
    "kind": "composed",
    "front": {"kind": "frames", "convolutions": 1, "channels": 8},
    "encoder": {"kind": "rnn", "dim": 8},
    "decoder": {"kind": "rnn", "dim": 8, "attention": {"kind": "monotonic", "hold": True}},
}


@torch.inference_mode()
@pytest.mark.parametrize("weight", [0.3, 1.0])
def test_scores_are_the_weighted_sum_of_both(weight: float) -> None:
    torch.manual_seed(3)
    base = build_encoder_decoder(SPEC, Sizes(5, 9, reads="frames"))
    model = JointModel(base.encoder, base.decoder, 9).eval()
    x, layout = torch.randn(2, 12, 5), Layout.padded([12, 7])
    encoded = model.encode(Source(x, layout))
    emitted = model.ctc(encoded)
    assert (emitted.blank, emitted.lengths.tolist()) == (9, [6, 4])
    candidates = [[[4, 5], [4, 4, 6], []], [[7], [8, 8, 8]]]
    options = {"blank": emitted.blank, "weight": weight}
    found = rescore_with_ctc(model.decoder, encoded, emitted.logits, emitted.lengths, candidates, **options)
    for row, (texts, count) in enumerate(zip(candidates, (12, 7), strict=True)):
        alone = model.encode(Source(x[row : row + 1, :count]))
        logp = model.ctc(alone).logits.log_softmax(-1)[0]
        wanted = {}
        for text in texts:
            seen = model.decoder(torch.tensor([[BOS, *text]]), model.decoder.init_state(alone)).logits[0].log_softmax(-1)
            attention = sum(float(seen[place, token]) for place, token in enumerate([*text, EOS]))
            lengths = torch.tensor([len(logp)]), torch.tensor([len(text)])
            ctc = -float(F.ctc_loss(logp[:, None], torch.tensor([text], dtype=torch.long), *lengths, blank=9, reduction="sum"))
            wanted[tuple(text)] = weight * max(ctc, IMPOSSIBLE) + (1 - weight) * attention
        assert {tuple(each.tokens[:-1]): each.score for each in found[row]} == pytest.approx(wanted, abs=1e-3, rel=1e-5)
        assert found[row][0].score == max(each.score for each in found[row])
        assert all(each.tokens[-1] == EOS for each in found[row])
