"""ByteNet against its formulas: blocks token by token, receptive fields, columns of the unfolded source, n-grams."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.data.batch import Layout, Source
from weft.errors import ConfigError
from weft.layers.convolution import TokenWindow
from weft.layers.embeddings_and_rotary_positions import HASH_BASE, HASH_PRIME, NGramBag
from weft.models.base import Encoded, Model, Sizes
from weft.models.bytenet import DynamicUnfolding, NGramEmbedding, ResidualBlock, SubBatchNorm
from weft.models.encoder_decoder import build_model
from weft_contract.mechanism_entries import perturbed, same

DIM, LENGTHS = 6, (23, 1, 9, 4)
VOCABULARY = Sizes(19, 19, shared=True)


def ids(rows: int, extent: int) -> Tensor:
    return torch.randint(4, VOCABULARY.source, (rows, extent))


@pytest.mark.parametrize("causal", [False, True])
def test_a_residual_block_is_its_formula(causal: bool) -> None:
    """Norm, ReLU and 1×1; norm, ReLU and the dilated convolution; norm, ReLU and 1×1; plus the input."""
    block = perturbed(ResidualBlock(12, TokenWindow(DIM, 3, 2, causal), dropout=0.5))
    x = torch.randn(1, 15, 12)
    inner = F.relu(block.norm_taps(block.down(F.relu(block.norm_down(x)))))
    kernel = block.taps.weight.view(DIM, 3, DIM)
    for t in range(15):
        near = [t + 2 * (tap - (2 if causal else 1)) for tap in range(3)]
        h = block.taps.bias + sum(kernel[:, tap] @ inner[0, at] for tap, at in enumerate(near) if 0 <= at < 15)
        same(block(x, block.init_state(1), None)[0][0, t], x[0, t] + block.up(F.relu(block.norm_up(h))))


def bytenet(**options: object) -> Model:
    settings = {"dim": 16, "dilations": (1, 2, 4), "encoder_sets": 2, "decoder_sets": 2, "dropout": 0.0, **options}
    return build_model({"kind": "bytenet", **settings}, VOCABULARY).eval()


@pytest.mark.parametrize("width", [3, 5])
def test_receptive_fields_are_those_of_the_formula(width: int) -> None:
    """(width − 1) · Σ dilations · sets further tokens: half on each side in the encoder, all earlier in the decoder."""
    model, extent = bytenet(width=width, unfold_ratio=1.0), 70
    reach = (width - 1) * 7 * 2
    place = torch.arange(extent)
    away = place[:, None] - place[None]
    source, target = ids(1, extent), ids(1, extent)
    other = (source - 4 + 1) % (VOCABULARY.source - 4) + 4
    changed = torch.where(torch.eye(extent, dtype=torch.bool), other, source)
    moved = (model.encode(Source(changed)).memory != model.encode(Source(source)).memory).any(-1).t()
    assert torch.equal(moved, away.abs() <= reach // 2)
    state = model.decoder.init_state(model.encode(Source(source.expand(extent, -1))))
    other = (target - 4 + 1) % (VOCABULARY.source - 4) + 4
    changed = torch.where(torch.eye(extent, dtype=torch.bool), other, target)
    found = model.decoder(changed, state).logits
    state = model.decoder.init_state(model.encode(Source(source.expand(extent, -1))))
    moved = (found != model.decoder(target.expand(extent, -1), state).logits).any(-1).t()
    assert torch.equal(moved, (away >= 0) & (away <= reach))


def test_target_position_t_reads_column_t() -> None:
    """A change in one column first shows there; beyond the reach of the last column there is no source at all."""
    model, count = bytenet(), 30
    encoded = model.encode(Source(ids(1, 10)))
    assert encoded.memory.shape[1] == 12 and encoded.layout is not None
    target = ids(1, count)
    before = model.decoder(target, model.decoder.init_state(encoded)).logits
    for column in range(12):
        memory = encoded.memory.clone()
        memory[0, column] += 1
        after = model.decoder(target, model.decoder.init_state(Encoded(memory, encoded.layout))).logits
        moved = (after != before).any(-1)[0].nonzero()[:, 0]
        assert moved[0] == column
    nothing, reach, long = Encoded(torch.randn(1, 1, 16), Layout.padded([0], 1)), 2 * 7 * 2, ids(1, 60)
    found, plain = (model.decoder(long, model.decoder.init_state(source)).logits for source in (encoded, nothing))
    same(found[:, 12 + reach :], plain[:, 12 + reach :])
    assert (found[:, 11 + reach] != plain[:, 11 + reach]).any()


@torch.no_grad()
def test_recurrent_bytenet_is_its_loop() -> None:
    """Step t reads e_t + W c_t, where c_t is source column t, and zeros beyond the last column."""
    small = {"dropout": 0.0, "dim": 16}
    parts = {"encoder": {"kind": "bytenet", **small}, "decoder": {"kind": "bytenet_rnn", "cell": "rnn", **small}}
    model = perturbed(build_model({"kind": "composed", **parts}, VOCABULARY))
    source, target = ids(1, 5), ids(1, 9)
    encoded, decoder = model.encode(Source(source)), model.decoder
    columns = [*encoded.memory[0], *torch.zeros(3, 16)]
    assert len(encoded.memory[0]) == 6
    cell, h = decoder.stack.layers[0].rnn, torch.zeros(16)
    found = decoder(target, decoder.init_state(encoded)).logits[0]
    for t, token in enumerate(target[0]):
        x = 4 * decoder.embedding.table.weight[token] + decoder.join(columns[t])
        h = torch.tanh(cell.weight_ih_l0 @ x + cell.bias_ih_l0 + cell.weight_hh_l0 @ h + cell.bias_hh_l0)
        same(found[t], decoder.output(torch.tanh(decoder.readout.mix(h))))


@torch.no_grad()
def test_a_language_model_is_the_decoder_without_a_source() -> None:
    model, plain = bytenet(), build_model({"kind": "bytenet_language_model", "dim": 16, "dilations": (1, 2, 4)}, VOCABULARY)
    weights = {name.removeprefix("decoder."): value for name, value in model.decoder.state_dict().items()}
    plain.decoder.load_state_dict({name: value for name, value in weights.items() if name in plain.decoder.state_dict()})
    nothing, tokens = Encoded(torch.randn(2, 1, 16), Layout.padded([0, 0], 1)), ids(2, 40)
    same(plain.eval()(tokens).hidden, model.decoder.hidden_states(tokens, model.decoder.init_state(nothing)).hidden)


def test_sub_batch_normalisation_is_its_formula() -> None:
    """The mean and variance of the auxiliary rows' real tokens normalise all rows; running averages do outside training."""
    part, lengths = perturbed(SubBatchNorm(DIM)).train(), [3, 5, 2, 4]
    x, before = torch.randn(4, 6, DIM), (part.mean.clone(), part.variance.clone())
    found = part(torch.where(Layout.padded(lengths, 6).mask[..., None], x, 99.0), Layout.padded(lengths, 6))
    tokens = torch.cat([x[0, :3], x[1, :5]])
    mean, variance = tokens.mean(0), tokens.var(0, correction=0)
    for row, length in enumerate(lengths):
        wanted = (x[row, :length] - mean) / (variance + 1e-5).sqrt() * part.weight + part.bias
        same(found[row, :length], wanted)
    same(part.mean, 0.9 * before[0] + 0.1 * mean)
    same(part.variance, 0.9 * before[1] + 0.1 * variance)
    same(part.eval()(x), (x - part.mean) / (part.variance + 1e-5).sqrt() * part.weight + part.bias)


def test_the_main_part_learns_nothing_of_its_future_and_the_auxiliary_part_does_not_count() -> None:
    model, tokens = bytenet(block_norm="sub_batch").train(), ids(4, 12)
    source = Source(ids(4, 5))

    def hidden(target: Tensor) -> Tensor:
        return model(source, target).hidden

    other = tokens.clone()
    other[2:, 6:] = ids(2, 6)
    before, after = hidden(tokens), hidden(other)
    same(after[2:, :6], before[2:, :6])
    assert (after[2:, 6:] != before[2:, 6:]).any()
    other[:2, 6:] = ids(2, 6)
    assert (hidden(other)[2:, :6] != before[2:, :6]).any(), "the statistics are those of the auxiliary part"
    weight = model.decoder.out.weight
    assert not torch.autograd.grad(hidden(tokens)[:2].sum(), weight)[0].any()
    assert torch.autograd.grad(hidden(tokens)[2:].sum(), weight)[0].any()


@pytest.mark.parametrize(("ratio", "extra"), [(1.0, 0), (1.2, 0), (1.5, 3), (1.1, 1)])
def test_a_source_is_unfolded_by_its_own_length(ratio: float, extra: int) -> None:
    """⌊ratio · |s|⌋ + extra columns, its tokens first, then zeros; the same in padded and packed rows."""
    unfold, rows = DynamicUnfolding(ratio, extra), [torch.randn(length, DIM) for length in LENGTHS]
    wide = [int(ratio * length) + extra for length in LENGTHS]
    block, above = torch.randn(len(rows), 25, DIM), Layout.padded(LENGTHS, 25)
    block[above.mask] = torch.cat(rows)
    padded, layout = unfold(block, above)
    assert layout.lengths.tolist() == wide
    packed, one = unfold(torch.cat([*rows, torch.randn(4, DIM)])[None], Layout.pack(LENGTHS, sum(LENGTHS) + 4))
    assert one.offsets is not None and one.offsets.diff()[:-1].tolist() == wide and one.offsets[-1] == packed.size(1)
    for number, (row, count) in enumerate(zip(rows, wide, strict=True)):
        wanted = F.pad(row, (0, 0, 0, count - len(row)))
        same(padded[number, :count], wanted)
        mine = one.segments[0] == number + 1
        same(packed[0, mine], wanted)
        assert one.positions[0, mine].tolist() == list(range(count))
    assert not padded[~layout.mask].any() and not packed[~one.mask].any()


def ngrams(row: list[int], at: int, longest: int) -> list[tuple[int, ...]]:
    """The n-grams of a row that end at a position, n = 2 … longest."""
    return [tuple(row[at - n + 1 : at + 1]) for n in range(2, longest + 1) if n <= at + 1]


def row_of(gram: tuple[int, ...], buckets: int) -> int:
    """The bucket of an n-gram: its tokens, last first, as digits of one number."""
    number = 0
    for token in reversed(gram):
        number = number * HASH_BASE + token
    return number % HASH_PRIME % buckets + 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_bag_of_ngrams_is_its_loop(packed: bool) -> None:
    """√dim · (the token's vector + those of the n-grams that end with it), sentence by sentence, in whole numbers."""
    table, bags = nn.Embedding(VOCABULARY.source, DIM), NGramBag(40, DIM, 4)
    part = perturbed(NGramEmbedding(table, bags, dropout=0.5))
    rows = [ids(1, length)[0] for length in LENGTHS]
    layout = Layout.pack(LENGTHS, sum(LENGTHS) + 3) if packed else Layout.padded(LENGTHS, 25)
    block = ids(*layout.mask.shape)
    block[layout.mask] = torch.cat(rows)
    found = part(block, part.init_state(len(block)), layout)[0][layout.mask].split(LENGTHS)
    for row, vectors in zip(rows, found, strict=True):
        for at, vector in enumerate(vectors):
            bag = [bags.weight[row_of(gram, 40)] for gram in ngrams(row.tolist(), at, 4)]
            same(vector, math.sqrt(DIM) * (table.weight[row[at]] + sum(bag, torch.zeros(DIM))))


def test_ngrams_of_text_seldom_share_a_row() -> None:
    """Of 3,000 different n-grams in 2²⁰ rows about four should; orders and lengths are told apart."""
    bags, tokens = NGramBag(2**20, 1, 3), ids(1, 3000)
    with torch.no_grad():
        bags.weight.copy_(torch.arange(2**20 + 1)[:, None])
    part = NGramEmbedding(nn.Embedding(19, 1), bags, dropout=0.0).eval()
    nn.init.zeros_(part.table.weight)
    codes = part(tokens, part.init_state(1), None)[0].flatten()[2:]
    sets = {tuple(tokens[0, at - 2 : at + 1].tolist()) for at in range(2, 3000)}
    assert len(sets) > 1500
    assert len(set(codes.tolist())) > 0.99 * len(sets)


def test_ngrams_never_met_say_nothing() -> None:
    """With the initial table, a model with n-grams equals the model without them; after training one row, it does not."""
    plain, bagged = bytenet(), bytenet(ngrams=5, ngram_buckets=7)
    bagged.load_state_dict(plain.state_dict(), strict=False)
    source, target = ids(2, 9), ids(2, 9)
    same(bagged(Source(source), target).hidden, plain(Source(source), target).hidden)
    assert bagged.encoder.front.ngrams is bagged.decoder.embedding.ngrams
    apart = bytenet(ngrams=2, share_embeddings="output")
    assert apart.encoder.front.ngrams is not apart.decoder.embedding.ngrams
    with torch.no_grad():
        bagged.decoder.embedding.ngrams.weight[1:] = 1.0
    moved = bagged(Source(source), target).hidden != plain(Source(source), target).hidden
    assert moved.any(-1).all()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="odd, not 2; use a width of 3"):
        build_model({"kind": "bytenet", "width": 2}, VOCABULARY)
    with pytest.raises(ConfigError, match="even, not 15"):
        build_model({"kind": "bytenet", "dim": 15}, VOCABULARY)
