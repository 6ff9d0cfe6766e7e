"""The Transformer and the beam search against transformers' MarianMTModel with the same random weights."""

from __future__ import annotations

import pytest
import torch

from weft.data.batch import EOS, PAD, Layout, Source
from weft.decoding.beam_search import BeamSelector
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.models.ensembles_and_wrapped_decoders import WrappedDecoder

transformers = pytest.importorskip("transformers")

VOCABULARY, DIM, HEADS, FEEDFORWARD, START = 60, 32, 4, 64, 1
LENGTHS = [9, 5, 7, 3, 8]


def marian(seed, eos_bias=0.0):
    torch.manual_seed(seed)
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=DIM,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=FEEDFORWARD,
        decoder_ffn_dim=FEEDFORWARD,
        max_position_embeddings=64,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="relu",
        init_std=0.2,
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # no value may hide a mistake
            if name.endswith("bias"):
                parameter.normal_(std=0.2)
            elif "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.final_logits_bias[0, EOS] += eos_bias
        model.final_logits_bias[0, PAD] = -1e4
    return model


def interleave(dim):
    """Channel i of weft is channel order[i] of Marian, which has all sines, then all cosines; the formula alternates."""
    half = dim // 2
    return torch.arange(dim).view(2, half).t().flatten()


def ours(theirs):
    """The same weights in weft's Transformer."""
    options = {
        "kind": "transformer",
        "dim": DIM,
        "heads": HEADS,
        "feedforward": FEEDFORWARD,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "norm": "post",
        "dropout": 0.0,
    }
    model = build_model(options, Sizes(VOCABULARY, VOCABULARY, True)).eval()
    given = theirs.state_dict()
    order = interleave(DIM)
    state = {}

    def copy_linear(name, sources, inward=True, outward=False):
        """Joins Marian's matrices; permutes the side that is connected to the residual stream."""
        weights = [given[f"{source}.weight"] for source in sources]
        biases = [given[f"{source}.bias"] for source in sources]
        if outward:
            weights, biases = [weight[order] for weight in weights], [bias[order] for bias in biases]
        if inward:
            weights = [weight[:, order] for weight in weights]
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.cat(weights), torch.cat(biases)

    def copy_norm(name, source):
        for part in ("weight", "bias"):
            state[f"{name}.norm.{part}"] = given[f"{source}.{part}"][order]

    def copy_layer(mine, theirs, cross):
        attention = f"{theirs}.self_attn"
        copy_linear(f"{mine}.mixer.attention.heads.query_key_value", [f"{attention}.{x}_proj" for x in "qkv"])
        copy_linear(f"{mine}.mixer.attention.heads.out", [f"{attention}.out_proj"], inward=False, outward=True)
        copy_norm(f"{mine}.around_mixer", f"{theirs}.self_attn_layer_norm")
        if cross:
            attention = f"{theirs}.encoder_attn"
            copy_linear(f"{mine}.cross.heads.query", [f"{attention}.q_proj"])
            copy_linear(f"{mine}.cross.heads.key_value", [f"{attention}.{x}_proj" for x in "kv"])
            copy_linear(f"{mine}.cross.heads.out", [f"{attention}.out_proj"], inward=False, outward=True)
            copy_norm(f"{mine}.around_cross", f"{theirs}.encoder_attn_layer_norm")
        copy_linear(f"{mine}.network.up", [f"{theirs}.fc1"])
        copy_linear(f"{mine}.network.down", [f"{theirs}.fc2"], inward=False, outward=True)
        copy_norm(f"{mine}.around_network", f"{theirs}.final_layer_norm")

    for i in range(2):
        copy_layer(f"encoder.layers.{i}", f"model.encoder.layers.{i}", cross=False)
        copy_layer(f"decoder.layers.{i}", f"model.decoder.layers.{i}", cross=True)
    table = given["model.shared.weight"][:, order]
    state.update({name: table for name in model.state_dict() if name.endswith(("table.weight", "output.weight"))})
    model.load_state_dict(state)
    return model


class Biased(WrappedDecoder):
    """weft's decoder with Marian's bias on the logits, which weft's output layer does not have."""

    def __init__(self, decoder, bias):
        super().__init__(decoder)
        self.bias = bias

    def logits(self, hidden):
        return self.decoder.logits(hidden) + self.bias


def inputs(seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=generator)
    layout = Layout.padded(LENGTHS)
    return torch.where(layout.mask, tokens, PAD), layout


def test_same_logits():
    theirs = marian(0)
    model = ours(theirs)
    tokens, layout = inputs(0)
    target = torch.randint(4, VOCABULARY, (len(LENGTHS), 11), generator=torch.Generator().manual_seed(9))
    with torch.inference_mode():
        expected = theirs(input_ids=tokens, attention_mask=layout.segments, decoder_input_ids=target, use_cache=False).logits
        got = (
            model.decoder(target, model.decoder.init_state(model.encode(Source(tokens, layout)))).logits
            + theirs.final_logits_bias
        )
    assert expected.std() > 0.5
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
@pytest.mark.parametrize(("stop", "early"), [("length", False), ("exact", "never"), ("first", True)])
def test_same_beams(penalty, stop, early):
    """Hypothesis by hypothesis: beam 4, four texts per source, with the same tokens and scores."""
    compared, lengths = 0, set()
    for seed in range(4):
        theirs = marian(seed, eos_bias=[0.5, 1.5, 4.0, 8.0][seed])
        model = ours(theirs)
        tokens, layout = inputs(seed)
        expected = theirs.generate(
            input_ids=tokens,
            attention_mask=layout.segments,
            num_beams=4,
            length_penalty=penalty,
            early_stopping=early,
            max_new_tokens=14,
            num_return_sequences=4,
            return_dict_in_generate=True,
            output_scores=True,
            do_sample=False,
        )
        with torch.inference_mode():
            encoded = model.encode(Source(tokens, layout))
        sources = len(LENGTHS)
        limit = LengthLimits(torch.full((sources,), 14), torch.zeros(sources, dtype=torch.long), torch.arange(sources))
        decoder = Biased(model.decoder, theirs.final_logits_bias[0])
        found, _ = run_search(
            decoder,
            encoded,
            BeamSelector(4, penalty, stop=stop),
            SearchRequest(prefix=torch.full((sources, 1), START), limits=limit, check=1),
        )
        for g in range(sources):
            for k in range(4):
                text = expected.sequences[g * 4 + k, 1:].tolist()
                text = text[: text.index(EOS) + 1] if EOS in text else text[:14]
                assert found[g][k].tokens == text
                assert found[g][k].score == pytest.approx(float(expected.sequences_scores[g * 4 + k]), rel=1e-4, abs=1e-4)
                compared, lengths = compared + 1, lengths | {len(text)}
    assert compared == 80
    assert len(lengths) > 3 or penalty > 1  # a strong penalty drives every text to the limit


def test_same_greedy_text():
    theirs = marian(1, eos_bias=2.0)
    model = ours(theirs)
    tokens, layout = inputs(1)
    expected = theirs.generate(
        input_ids=tokens, attention_mask=layout.segments, num_beams=1, max_new_tokens=14, do_sample=False
    )[:, 1:]
    with torch.inference_mode():
        encoded = model.encode(Source(tokens, layout))
    sources = len(LENGTHS)
    limit = LengthLimits(torch.full((sources,), 14), torch.zeros(sources, dtype=torch.long), torch.arange(sources))
    decoder = Biased(model.decoder, theirs.final_logits_bias[0])
    found, _ = run_search(
        decoder, encoded, GreedySelector(), SearchRequest(prefix=torch.full((sources, 1), START), limits=limit)
    )
    for g in range(sources):
        text = expected[g].tolist()
        assert found[g][0].tokens == (text[: text.index(EOS) + 1] if EOS in text else text)
