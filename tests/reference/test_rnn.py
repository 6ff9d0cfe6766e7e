"""Recurrent models against torch's bidirectional layers and against loops over the equations of the papers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from weft.data.batch import Layout, Source
from weft.decoding.beam_search import BeamSelector
from weft.decoding.score_given_targets import teacher_force
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits
from weft.errors import ConfigError
from weft.explain.attention_heatmap import cross_attention
from weft.layers.recurrent import RecurrentStack, StepDropout, make_layer, turn_round
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.models.ensembles_and_wrapped_decoders import Ensemble
from weft.tasks.translation.segmenter import Translation

WORDS, LENGTHS = 17, [7, 3, 0, 9, 1]
SIZES = {"dim": 8, "embedding": 6, "encoder_dim": 10, "dropout": 0.0}


def same(a: Tensor, b: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


def make(**options: Any) -> Model:
    model = build_model({"kind": "rnn", **SIZES, **options}, Sizes(WORDS, WORDS, True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def ids(rows: int, extent: int) -> Tensor:
    return torch.randint(4, WORDS, (rows, extent))


def logits(model: Model, source: Tensor, target: Tensor, above: Layout | None = None, below: Layout | None = None) -> Tensor:
    return model.decoder(target, model.decoder.init_state(model.encode(Source(source, above))), below).logits


def gru(x: Tensor, h: Tensor, cell: nn.GRU) -> Tensor:
    """Cho et al. 2014: z keeps the old state, r gates it for the new one."""
    (ir, iz, ii), (hr, hz, hi) = ((w @ v + b).chunk(3) for w, v, b in _sides(x, h, cell))
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    return z * h + (1 - z) * (ii + r * hi).tanh()


def lstm(x: Tensor, state: tuple[Tensor, Tensor], cell: nn.LSTM) -> tuple[Tensor, Tensor]:
    h, c = state
    i, f, g, o = sum(w @ v + b for w, v, b in _sides(x, h, cell)).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def attended(s: Tensor, memory: Tensor, cross: nn.Module) -> Tensor:
    """Bahdanau et al. 2015: e_j = vᵀ tanh(W s + b + U h_j), and Σ softmax(e)_j h_j."""
    named = {name.rsplit(".", 2)[-2] + "." + name.rsplit(".", 1)[-1]: value for name, value in cross.named_parameters()}
    w, b, u, v = (named[name] for name in ("query.weight", "query.bias", "key.weight", "score.weight"))
    e = torch.stack([v[0] @ torch.tanh(w @ s + b + u @ h) for h in memory])
    return sum((a * h for a, h in zip(e.softmax(0), memory, strict=True)), torch.zeros(memory.size(1)))


def _sides(x: Tensor, h: Tensor, cell: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(cell.weight_ih_l0, x, cell.bias_ih_l0), (cell.weight_hh_l0, h, cell.bias_hh_l0)]


@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn"])
@pytest.mark.parametrize("both", [True, False])
def test_a_stack_equals_torch_on_packed_rows(kind: Any, both: bool) -> None:
    stack = RecurrentStack(kind, 6, 8, 2, StepDropout(), both=both)
    theirs = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[kind](6, 8 // (1 + both), 2, batch_first=True, bidirectional=both)
    for number, layer in enumerate(stack.layers):
        for name, value in layer.rnn.named_parameters():
            getattr(theirs, name.replace("l0", f"l{number}")).data = value.data
    lengths, x = [7, 3, 9, 1], torch.randn(4, 9, 6)
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    outputs, last = theirs(packed)
    wanted = pad_packed_sequence(outputs, batch_first=True)[0]
    layout = Layout.padded(lengths, 11)
    found, state = stack(nn.functional.pad(x, (0, 0, 0, 2), value=7.0), stack.init_state(4), layout)
    same(found[:, :9], wanted)
    for part, final in enumerate(last if kind == "lstm" else (last,)):
        layers = final.view(2, 1 + both, 4, -1).transpose(1, 2).flatten(2)
        for number in range(2):
            same(state[number][part], layers[number])


@torch.no_grad()
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("inputs", [4, 6])
def test_sru_is_its_equations(inputs: int, both: bool) -> None:
    """Lei et al. 2017, section 2: c_t = f c_{t−1} + (1 − f) x̃, h = r tanh(c) + (1 − r) x; a wider x is projected."""
    layer, x, width = make_layer("sru", inputs, 8 if both else 4, both=both), torch.randn(3, 6, inputs), 4
    layer.biases += torch.randn_like(layer.biases)
    first = tuple(torch.randn(3, layer.width) for _ in range(2))
    found, after = layer(x, first, Layout.padded([6, 0, 4]))
    for row, length in enumerate([6, 0, 4]):
        for way in range(1 + both):
            channels, steps = slice(width * way, width * (way + 1)), range(length)
            h, c = (part[row, channels] for part in first)
            for t in steps if way == 0 else reversed(steps):
                fresh, f, r, *skip = (layer.reads[way].weight @ x[row, t]).split(width)
                f, r = ((a + b).sigmoid() for a, b in zip((f, r), layer.biases[way].split(width), strict=True))
                c = f * c + (1 - f) * fresh
                h = r * c.tanh() + (1 - r) * (skip[0] if skip else x[row, t])
                same(found[row, t, channels], h)
            same(after[0][row, channels], h)
            same(after[1][row, channels], c)
        assert not found[row, length:].any()


@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn", "sru"])
@pytest.mark.parametrize("both", [True, False])
def test_lengths_that_only_the_device_knows_change_nothing(kind: Any, both: bool) -> None:
    layer, x = make_layer(kind, 6, 8, both=both), torch.randn(4, 5, 6)
    known = Layout.padded([3, 5, 0, 1])
    unknown = Layout(known.segments, known.positions, None, known.longest)
    assert unknown.known is None
    state = layer.init_state(4) if both else tuple(torch.randn(4, 8) for _ in range(layer.parts))
    (wanted, ends), (found, after) = layer(x, state, known), layer(x, state, unknown)
    same(wanted[known.mask], found[known.mask])
    for a, b in zip(ends, after, strict=True):
        same(a, b)


@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn", "sru"])
@pytest.mark.parametrize("residual", [True, False])
def test_steps_equal_the_whole(kind: Any, residual: bool) -> None:
    stack, x = RecurrentStack(kind, 6, 8, 3, StepDropout(), residual=residual), torch.randn(5, 9, 6)
    whole, after = stack(x, stack.init_state(5), Layout.padded(LENGTHS))
    state = stack.init_state(5)
    for t in range(9):
        output, state = stack.step(x[:, t], state, stack.step_masks(x)[t])
        for row, length in enumerate(LENGTHS):
            if t < length:
                same(whole[row, t], output[row])
            if t == length - 1:
                for mine, theirs in zip(after, state, strict=True):
                    for a, b in zip(mine, theirs, strict=True):
                        same(a[row], b[row])
    assert all(not part[LENGTHS.index(0)].any() for cell in after for part in cell)


def test_rows_are_turned_round_inside_their_length() -> None:
    x = torch.arange(8).view(2, 4)
    assert turn_round(x, Layout.padded([3, 4])).tolist() == [[2, 1, 0, 3], [7, 6, 5, 4]]
    assert turn_round(x[..., None], None)[..., 0].tolist() == [[3, 2, 1, 0], [7, 6, 5, 4]]


def test_a_source_read_from_its_end_is_the_turned_source() -> None:
    options = {"style": "luong", "bidirectional": False}
    plain, turned = make(**options), make(**options, reverse_source=True)
    turned.load_state_dict(plain.state_dict())
    source, target, layout = ids(3, 7), ids(3, 5), Layout.padded([7, 2, 5])
    wanted, found = plain.encode(Source(turn_round(source, layout), layout)), turned.encode(Source(source, layout))
    same(found.memory[layout.mask], turn_round(wanted.memory, layout)[layout.mask])
    same(logits(turned, source, target, layout), logits(plain, turn_round(source, layout), target, layout))


@pytest.mark.parametrize("cell", ["gru", "lstm", "rnn", "sru"])
def test_all_at_once_equals_step_by_step(cell: str) -> None:
    model = make(style="luong", cell=cell, decoder_layers=2)
    above, below = Layout.padded([6, 2, 5]), Layout.padded([4, 8, 0])
    source, target = ids(3, 6), ids(3, 8)
    start = model.decoder.init_state(model.encode(Source(source, above)))
    assert not model.decoder.feeds_back
    whole = model.decoder(target, start, below)
    model.decoder.feeds_back = True
    steps = model.decoder(target, start, below)
    same(whole.logits[below.mask], steps.logits[below.mask])
    for mine, other in zip(whole.state.layers, steps.state.layers, strict=True):
        for a, b in zip(mine, other, strict=True):
            same(a, b)


def test_bahdanau_is_its_equations() -> None:
    """s_i = f(s_{i−1}, y_{i−1}, c_i), α_ij = softmax(vᵀ tanh(W s_{i−1} + U h_j)), and the maxout readout."""
    model = make(readout="maxout")
    source, target = ids(1, 7), ids(1, 6)
    memory, decoder = model.encode(Source(source)).memory[0], model.decoder
    first = memory[-1, :5], memory[0, 5:]  # each direction's last state
    s, cell = decoder.bridge.project(torch.cat(first)).tanh(), decoder.stack.layers[0].rnn
    for i, found in enumerate(logits(model, source, target)[0]):
        c = attended(s, memory, decoder.cross)
        y = decoder.embedding.table.weight[target[0, i]] * 6**0.5
        s = gru(torch.cat([y, c]), s, cell)
        t = decoder.readout.mix(torch.cat([s, y, c]))
        t = torch.stack([torch.maximum(t[2 * k], t[2 * k + 1]) for k in range(6)])
        same(found, decoder.output.weight @ t)


@pytest.mark.parametrize("input_feeding", [True, False])
def test_luong_is_its_equations(input_feeding: bool) -> None:
    """h_t = LSTM(y_t [; h̃_{t−1}]), the context by h_t, h̃_t = tanh(W_c [c; h]), logits W_s h̃."""
    model = make(style="luong", cell="lstm", input_feeding=input_feeding)
    source, target = ids(1, 7), ids(1, 6)
    memory, decoder = model.encode(Source(source)).memory[0], model.decoder
    cell = decoder.stack.layers[0].rnn
    state: Any = decoder.bridge.project(torch.cat([memory[-1, :5], memory[0, 5:]])).tanh().chunk(2)
    attentional = torch.zeros(6)
    for t, found in enumerate(logits(model, source, target)[0]):
        y = decoder.embedding.table.weight[target[0, t]] * 6**0.5
        state = lstm(torch.cat([y, attentional]) if input_feeding else y, state, cell)
        c = attended(state[0], memory, decoder.cross)
        attentional = decoder.readout.mix(torch.cat([state[0], c])).tanh()
        same(found, decoder.output.weight @ attentional)


def test_sutskever_is_its_equations() -> None:
    """Deep LSTMs; the last h and c of each encoder layer, with the source read backwards, initialise the decoder."""
    deep = {"encoder_layers": 2, "decoder_layers": 2, "bidirectional": False, "embedding": 8, "encoder_dim": 8}
    model = make(style="fixed", cell="lstm", bridge="copy", readout="none", reverse_source=True, **deep)
    source, target = ids(1, 5), ids(1, 4)
    state: list[Any] = [(torch.zeros(8), torch.zeros(8))] * 2

    def step(side: Any, token: Tensor) -> Tensor:
        table = side.front.table if side is model.encoder else side.embedding.table
        x = table.weight[token] * 8**0.5
        for number, layer in enumerate(side.stack.layers):
            state[number] = lstm(x, state[number], layer.rnn)
            x = state[number][0]
        return x

    for token in source[0].flip(0):
        step(model.encoder, token)
    for found, token in zip(logits(model, source, target)[0], target[0], strict=True):
        same(found, model.decoder.output.weight @ step(model.decoder, token))


def test_cho_is_its_equations() -> None:
    """c = tanh(V h_N), h'_0 = tanh(V' c); c enters every step, and the readout max of pairs of O_h h + O_y y + O_c c."""
    model = make(style="cho", readout="maxout", bidirectional=False)
    source, target = ids(1, 5), ids(1, 4)
    decoder, h = model.decoder, torch.zeros(10)
    for token in source[0]:
        h = gru(model.encoder.front.table.weight[token] * 6**0.5, h, model.encoder.stack.layers[0].rnn)
    c = decoder.summary(h).tanh()
    h = decoder.bridge.project(c).tanh()
    for found, token in zip(logits(model, source, target)[0], target[0], strict=True):
        y = decoder.embedding.table.weight[token] * 6**0.5
        h = gru(torch.cat([y, c]), h, decoder.stack.layers[0].rnn)
        pairs = decoder.readout.mix(torch.cat([h, y, c])).view(6, 2)
        same(found, decoder.output.weight @ pairs.max(1).values)


@pytest.mark.parametrize("style", ["bahdanau", "luong"])
def test_a_picture_has_the_weights_of_every_token(style: str) -> None:
    model, source, target = make(style=style), ids(1, 7), ids(1, 4)
    forced = teacher_force(model, source[0].tolist(), target[0].tolist())
    found = Translation("", 0.0, attention=forced.weights, uses=forced.uses)
    weights = torch.from_numpy(cross_attention(found))
    assert weights.shape == (4, 7)
    same(weights.sum(-1), torch.ones(4))
    assert (weights[0] - weights[1]).abs().max() > 1e-3


def test_recurrent_models_and_a_transformer_speak_with_one_voice() -> None:
    """Beam search by an ensemble of families with ragged prefixes: scores use the mean of probabilities, token by token."""
    small = {"kind": "transformer", "dim": 8, "heads": 2, "feedforward": 8, "encoder_layers": 1, "decoder_layers": 1}
    models = [make(), make(style="cho"), build_model(small, Sizes(WORDS, WORDS, True)).eval()]
    source, above = ids(4, 6), Layout.padded([6, 2, 5, 1])
    first, below = ids(4, 3), Layout.padded([1, 3, 2, 1])
    limits = LengthLimits(torch.tensor([5, 2, 9, 7]), torch.zeros(4, dtype=torch.long), torch.arange(4))
    together = Ensemble(models).eval()
    encoded = together.encode(Source(source, above))
    found, _ = run_search(
        together.decoder,
        encoded,
        BeamSelector(3, 0.0),
        SearchRequest(prefix=first, prefix_layout=below, limits=limits, check=1),
    )
    for row, texts in enumerate(found):
        begin = first[row, : below.counts[row]].tolist()
        for text in texts:
            fed = torch.tensor([[*begin, *text.tokens[:-1]]])
            each = [logits(model, source[row : row + 1, : above.counts[row]], fed).softmax(-1) for model in models]
            chances = torch.stack(each).mean(0)[0, len(begin) - 1 :]
            score = chances[range(len(text.tokens)), text.tokens].log().sum()
            assert text.score == pytest.approx(score.item(), abs=1e-3)


@pytest.mark.parametrize("style", ["bahdanau", "luong"])
def test_variational_dropout_keeps_its_mask(style: str) -> None:
    """The same token fed twice has the same entries dropped; plain dropout drops others."""
    for variational in (True, False):
        model = make(style=style, dropout=0.5, variational_dropout=variational, encoder_layers=2, decoder_layers=2).train()
        embedded = model.decoder.noise(model.decoder.embedding(torch.full((2, 5), 4)))
        masks = model.decoder.stack.masks(embedded)[1]
        assert masks is not None and masks.shape == (2, 1 if variational else 5, 8)
        steps = [mask for _, mask in model.decoder.stack.step_masks(embedded)]
        assert len(steps) == 5
        assert all(mask is not None and torch.equal(mask, steps[0]) == variational for mask in steps[1:])
        assert bool((embedded == embedded[:, :1]).all()) == variational
        assert not torch.equal(embedded[0], embedded[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_feeding": True}, "belongs to model.style: luong, not bahdanau"),
        ({"style": "fixed", "bridge": "zeros"}, "without any sight of the source"),
        ({"readout": "none"}, "here: bahdanau, 6 and 8"),
        ({"encoder_dim": 9}, "width must be even, not 9"),
        ({"bridge": "copy"}, "set encoder_layers and decoder_layers"),
        ({"style": "fixed", "readout": "none"}, "here: fixed, 6 and 8"),
        ({"style": "gahdanau"}, "did you mean 'bahdanau'"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)
