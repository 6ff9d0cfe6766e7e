"""Int8 decoding: close to float32 in every model, and the output of a row depends on that row alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import weft
from tests.helpers import tiny
from weft.data.batch import Layout, Source
from weft.data.formats import open_pairs
from weft.errors import DeviceError
from weft.layers.int8 import Int8Linear, in_int8
from weft.layers.recurrent import RecurrentLayer
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.runs.translator import Translator
from weft_contract.decoder_checks import forced
from weft_contract.model_entries import SOURCE, DecoderEntry, decoders, finite, ids

pytestmark = pytest.mark.skipif(torch.backends.quantized.engine not in ("x86", "fbgemm"), reason="no kernel for eight bits")


LOOSE = 1 if torch.cpu._is_vnni_supported() else 2
"""Without VNNI there are half as many levels, so errors are twice as large."""


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def error(found: Tensor, wanted: Tensor) -> Tensor:
    """The relative error of each row."""
    return (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)


def rows() -> Tensor:
    """Rows of very different magnitudes, for which a common scale would fail."""
    torch.manual_seed(2)
    return torch.randn(40, 6, 96) * torch.logspace(-4, 4, 40)[:, None, None]


@pytest.mark.parametrize("bias", [True, False])
def test_every_row_is_close_to_float32_whatever_its_size(bias: bool) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(96, 130, bias=bias)
    layer.weight *= torch.logspace(-3, 3, 130)[:, None]
    found, wanted = Int8Linear(layer.weight, layer.bias)(rows()), layer(rows())
    assert found.dtype == torch.float32
    assert error(found, wanted).max() < 0.02 * LOOSE
    by_output = error((found - found.mean((0, 1))).flatten(0, 1).t(), (wanted - wanted.mean((0, 1))).flatten(0, 1).t())
    assert by_output.max() < 0.03 * LOOSE, "small outputs are drowned by large ones"


def test_a_row_gives_bit_for_bit_the_same_in_every_batch() -> None:
    layer, x = Int8Linear(torch.randn(130, 96), torch.randn(130)), rows()
    together = layer(x)
    for row in range(0, 40, 7):
        assert torch.equal(layer(x[row]), together[row])
        assert torch.equal(layer(x[row, 2:3]), together[row, 2:3])
    assert torch.equal(layer(x.flip(0)).flip(0), together)
    assert layer(x[:0]).shape == (0, 6, 130)


def test_rows_of_zeros_give_the_bias_and_what_is_not_finite_shows() -> None:
    layer = Int8Linear(torch.randn(20, 32), torch.randn(20))
    x = torch.zeros(3, 32)
    x[1], x[2, 5] = 1.0, float("nan")
    found = layer(x)
    assert torch.equal(found[0], layer.bias)
    assert found[1].isfinite().all() and found[2].isnan().all()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_steps_of_recurrent_layers_are_those_of_float32(kind: str) -> None:
    torch.manual_seed(3)
    layer = nn.ModuleList([RecurrentLayer(kind, 48, 64)])  # type: ignore[arg-type]
    rounded = in_int8(layer)
    x = torch.randn(5, 30, 48)
    wanted, last = layer[0](x, layer[0].init_state(5), None)
    state, found = rounded[0].init_state(5), []
    for token in x.split(1, 1):
        output, state = rounded[0](token, state, None)
        found.append(output)
    assert error(torch.cat(found, 1), wanted).max() < 0.05
    for mine, theirs in zip(state, last, strict=True):
        assert error(mine, theirs).max() < 0.05


@pytest.mark.parametrize("entry", decoders(), ids=str)
def test_every_model_decodes_step_by_step_close_to_float32(entry: DecoderEntry) -> None:
    model = entry.make()
    rounded, above = in_int8(model), Layout.padded(SOURCE)
    source, target = ids(4, above.longest, seed=2), ids(4, 7, seed=3)
    wanted = forced(model, source, target, above)
    assert error(forced(rounded, source, target, above), wanted).median() < 0.03 * LOOSE
    state, found = rounded.decoder.init_state(rounded.encode(Source(source, above)), room=16), []
    for token in target.split(1, 1):
        step = rounded.decoder(token, state)
        state = step.state
        found.append(finite(step.logits))
    # By the median: if an attention chooses among keys, rounding may sometimes change its choice.
    assert 0 < error(torch.cat(found, 1), wanted).median() < 0.03 * LOOSE


def test_every_large_product_is_in_eight_bits_and_the_model_stays_as_it_was() -> None:
    for spec in ({"kind": "transformer"}, {"kind": "rnn"}, {"kind": "convs2s"}, {"kind": "bytenet"}):
        model = build_model({**spec, "dim": 32}, Sizes(50, 50, True)).eval()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        rounded = in_int8(model)
        assert not [part for part in rounded.modules() if type(part) is nn.Linear and part.out_features >= 16]
        assert isinstance(rounded.decoder.output, Int8Linear) and isinstance(model.decoder.output, nn.Linear)
        table = model.encoder.front.table.weight
        assert rounded.encoder.front.table.weight is table and model.decoder.output.weight is table
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return weft.load(reverse_run, device="cpu")


@pytest.mark.parametrize("beam", [1, 4])
def test_translations_are_those_of_float32_where_the_model_is_sure(translator: Translator, beam: int) -> None:
    pairs = list(open_pairs(tiny.generated("reverse", 64, "test")))
    sources = [source for source, _ in pairs]
    found = translator.translate(sources, beam=beam, precision="int8")
    plain = translator.translate(sources, beam=beam)
    assert sum(one.text == other.text for one, other in zip(found, plain, strict=True)) >= 60
    assert any(one.score != other.score for one, other in zip(found, plain, strict=True)), "nothing was rounded"
    assert max(abs(one.score - other.score) for one, other in zip(found, plain, strict=True) if one.ids == other.ids) < 0.1
    few = [
        each
        for start in range(0, 64, 5)
        for each in translator.translate(sources[start : start + 5], beam=beam, precision="int8")
    ]
    assert sum(one.ids == other.ids for one, other in zip(few, found, strict=True)) >= 63


def test_elsewhere_than_on_a_cpu_with_such_a_kernel_there_is_an_error(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceError, match="int8 runs on a CPU only; on meta use bf16"):
        in_int8(nn.Linear(20, 20, device="meta"))
    usual = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = "onednn"
        with pytest.raises(DeviceError, match=r"an x86 CPU and a torch with FBGEMM.* use float32 or bf16"):
            Translator(translator.model, translator.task, translator.config).translate("a b", precision="int8")
    finally:
        torch.backends.quantized.engine = usual
