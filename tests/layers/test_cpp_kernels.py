"""C++ kernels for the CPU: each matches torch, a search with them gives the same result, and decoding works without them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor

import weft
from tests.helpers import tiny
from tests.helpers.int8_kernel import EXACT, FLIPPED, with_all_levels
from weft import file_access
from weft.attention.core.kv_cache import CacheIndex
from weft.data.batch import BOS, PAD, Layout, Source
from weft.data.formats import open_pairs
from weft.decoding.beam_search import BeamSelector
from weft.decoding.greedy_search import GreedySelector
from weft.decoding.hypotheses import Hypothesis
from weft.decoding.ngram_blocking_and_rules import ForbidTokens, NoRepeatNgram
from weft.decoding.search_loop import SearchRequest, run_search
from weft.decoding.token_selection import LengthLimits, TokenSelector
from weft.layers.int8 import Int8Linear, in_int8
from weft.layers.kernels import cpp
from weft.layers.kernels.cpp import CannotBuild, Kernels
from weft.layers.kernels.cpp import compiled_library as build
from weft.models.base import Model, Sizes
from weft.models.encoder_decoder import build_model
from weft.runs.translator import Translator


@pytest.fixture(autouse=True)
def _all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    with_all_levels(monkeypatch)


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module", autouse=True)
def folder(shared_folder: Path) -> Iterator[Path]:
    """The cache of the test run, where kernels are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CXX", raising=False)
        cpp._attempt.cache_clear()
        yield shared_folder / "cache"
    cpp._attempt.cache_clear()


@pytest.fixture(scope="module")
def kernels(folder: Path) -> Kernels:
    try:
        return cpp.kernels()
    except CannotBuild as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (130, 96), (16, 37), (257, 512)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_are_bit_for_bit_those_of_torch(kernels: Kernels, outputs: int, inputs: int, bias: bool) -> None:
    torch.manual_seed(1)
    weight, shift = torch.randn(outputs, inputs) * torch.logspace(-3, 3, outputs)[:, None], torch.randn(outputs)
    plain, ours = (Int8Linear(weight, shift if bias else None, kernels=each) for each in (None, kernels))
    for rows in (0, 1, 2, 5, 7, 13, 97, 200):
        x = torch.randn(rows, inputs) * torch.logspace(-4, 4, rows)[:, None]
        assert torch.equal(ours(x), plain(x)), rows
    x = torch.randn(3, inputs, 5)
    assert torch.equal(ours(x.transpose(1, 2)), plain(x.transpose(1, 2))), "not laid out in order"
    assert torch.equal(ours(x.transpose(1, 2).bfloat16()), plain(x.transpose(1, 2).bfloat16()))
    assert torch.equal(deepcopy(ours)(x[:, :, 0]), plain(x[:, :, 0]))
    some = torch.tensor([9, 0, 3, 15])
    assert torch.equal(ours.rows(some)(x[:, :, 0]), plain(x[:, :, 0])[:, some])
    assert torch.equal(ours.weight, plain.weight)


def test_layers_that_lie_side_by_side_are_their_own(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "CHUNK", 1 << 16)
    weights = [torch.randn(outputs, 70) for outputs in (30, 130, 500, 2000, 30, 64)]
    ours = [Int8Linear(weight, None, kernels) for weight in weights]
    del ours[1], weights[1]
    x = torch.randn(4, 70)
    assert all(torch.equal(mine(x), Int8Linear(weight, None)(x)) for mine, weight in zip(ours, weights, strict=True))


def test_rows_of_zeros_give_the_bias_and_what_is_not_finite_shows(kernels: Kernels) -> None:
    layer, x = Int8Linear(torch.randn(20, 32), torch.randn(20), kernels), torch.zeros(5, 32)
    x[1], x[2, 5], x[3, 31], x[4, 0] = 1.0, float("nan"), float("inf"), float("-inf")
    found = layer(x)
    assert torch.equal(found[0], layer.bias)
    assert found[1].isfinite().all() and found[2:].isnan().all()


def looked(q: Tensor, k: Tensor, v: Tensor, ledger: CacheIndex | None, bias: Tensor | None) -> Tensor:
    """The same attention row by row in float64."""
    sources, found = k.size(0), torch.zeros_like(q, dtype=torch.float64)
    beams = q.size(0) // sources
    for row in range(q.size(0)):
        source, beam = divmod(row, beams)
        count = k.size(3) if ledger is None else int(ledger.length[source])
        owner = torch.zeros(count, dtype=torch.long) if ledger is None else ledger.ancestry[source, beam, :count].long()
        keys, values = (store[source][:, owner, torch.arange(count)].double() for store in (k, v))
        scores = (keys * q[row, :, None].double()).sum(-1) / q.size(-1) ** 0.5
        weights = (scores if bias is None else scores + bias[source]).softmax(-1).nan_to_num()
        found[row] = (weights[..., None] * values).sum(1)
    return found


@pytest.mark.parametrize("width", [16, 48, 64, 128])
def test_a_step_of_attention_reads_its_own_cells_alone(kernels: Kernels, width: int) -> None:
    torch.manual_seed(2)
    sources, beams, heads, room = 3, 4, 2, 37
    q = torch.randn(sources * beams, 3, heads, width)[:, 1] * 3
    k, v = torch.randn(2, sources, heads, beams, room, width)
    ledger = CacheIndex(torch.randint(0, beams, (sources, beams, room), dtype=torch.int16), torch.tensor([1, 16, 37]))
    found = kernels.attend_step(q, k, v, ledger.ancestry, ledger.length, None)
    torch.testing.assert_close(found.double(), looked(q, k, v, ledger, None), atol=1e-5, rtol=1e-5)
    bias = torch.zeros(sources, room)
    bias[0, 5:], bias[1, 0], bias[2] = float("-inf"), -2.0, float("-inf")
    found = kernels.attend_step(q, k[:, :, :1].contiguous(), v[:, :, :1].contiguous(), None, None, bias)
    torch.testing.assert_close(found.double(), looked(q, k, v, None, bias), atol=1e-5, rtol=1e-5)
    assert not found[2 * beams :].any(), "who may look at nothing finds 0"


def test_a_full_store_takes_no_more(kernels: Kernels) -> None:
    k, store, length = torch.randn(3, 2, 1, 16), torch.zeros(3, 2, 1, 4, 16), torch.tensor([0, 3, 1])
    kernels.append(k, -k, store, values := torch.zeros_like(store), length)
    assert all(torch.equal(store[row, :, 0, at], k[row, :, 0]) for row, at in enumerate(length))
    assert torch.equal(values, -store) and store.count_nonzero() == 3 * 2 * 16
    with pytest.raises(IndexError, match="cache is full: it has room for 4 tokens"):
        kernels.append(k, k, store, store, length + 1)


@pytest.mark.parametrize("size", [5, 64, 1000, 4133])
def test_sums_and_the_best_of_logits(kernels: Kernels, size: int) -> None:
    torch.manual_seed(3)
    logits = torch.randn(7, size) * torch.logspace(-2, 2, 7)[:, None] + 30
    logits[2, 1:4] = float("-inf")
    torch.testing.assert_close(kernels.log_sum(logits).double(), logits.double().logsumexp(-1), atol=1e-5, rtol=1e-6)
    for count in (1, 4, min(size, 30)):
        best, where = kernels.best(logits, count)
        assert torch.equal(best, logits.topk(count).values)
        assert torch.equal(logits.gather(1, where), best)
        assert all(len(set(row)) == count for row in where.tolist())
    assert kernels.best(torch.tensor([[1.0, 7.0, 2.0, 7.0, 7.0]]), 3)[1].tolist() == [[1, 3, 4]], "of equal ones the first"
    logits[:, -1] = float("nan")
    assert kernels.log_sum(logits).isnan().all()


def test_two_threads_give_the_same(kernels: Kernels) -> None:
    torch.manual_seed(4)
    layer, x = Int8Linear(torch.randn(700, 512), None, kernels), torch.randn(80, 512)
    k, length = torch.randn(80, 2, 1, 40, 64), torch.full((80,), 40)
    q, ancestry, logits = torch.randn(80, 2, 64), torch.zeros(80, 1, 40, dtype=torch.int16), torch.randn(80, 3000)

    def everything() -> list[Tensor]:
        found = kernels.attend_step(q, k, k, ancestry, length, None)
        return [layer(x), found, kernels.log_sum(logits), *kernels.best(logits, 8)]

    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = everything()
        torch.set_num_threads(2)
        assert all(torch.equal(*pair) for pair in zip(everything(), alone, strict=True))
    finally:
        torch.set_num_threads(usual)


MODELS = {
    "transformer": {"kind": "transformer", "dim": 32, "heads": 2, "feedforward": 48, "encoder_layers": 1, "decoder_layers": 2},
    "rotary": {"kind": "transformer", "dim": 64, "heads": 2, "feedforward": 48, "encoder_layers": 1, "decoder_layers": 2,
               "position": "none", "decoder_self": {"kind": "full", "position": "rotary"}},
    "rnn": {"kind": "rnn", "dim": 32, "embedding": 32, "encoder_dim": 32},
    "convs2s": {"kind": "convs2s", "dim": 32, "channels": 32, "encoder_layers": 2, "decoder_layers": 2},
}  # fmt: skip


def made(kind: str) -> Model:
    torch.manual_seed(5)
    model: Model = build_model(MODELS[kind], Sizes(90, 90, True)).eval()
    for parameter in model.parameters():
        parameter.mul_(3 if parameter.dim() > 1 else 1)  # so that rounding cannot change a choice
    return model


def searched(model: Model, selector: TokenSelector) -> list[list[Hypothesis]]:
    """Four sources of different lengths and prefixes; caches grow on the way, and sources leave."""
    lengths = [9, 4, 6, 2]
    source = torch.randint(4, 90, (4, 9), generator=torch.Generator().manual_seed(6))
    longest = torch.tensor([40, 6, 5, 7])
    found, _ = run_search(
        model.decoder,
        model.encode(Source(source, Layout.padded(lengths))),
        selector,
        SearchRequest(
            prefix=torch.tensor([[BOS, 4], [BOS, 0], [BOS, 0], [BOS, 7]]),
            prefix_layout=Layout.padded([2, 1, 1, 2]),
            limits=LengthLimits(longest, longest - 1, torch.arange(4)),
            constraints=[ForbidTokens([PAD, BOS]), NoRepeatNgram(3, 60)],
        ),
    )
    return found


@pytest.mark.parametrize("selector", [GreedySelector(), BeamSelector(4), BeamSelector(9)], ids=["greedy", "beam", "copied"])
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_search_with_them_finds_the_same(kernels: Kernels, kind: str, precision: str, selector: TokenSelector) -> None:
    model, calls = made(kind), []
    plain = searched(model if precision == "float32" else in_int8(model), selector)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("attend_step", "append", "log_sum", "best"):
            work = getattr(Kernels, name)
            patch.setattr(Kernels, name, lambda *given, name=name, work=work: (calls.append(name), work(*given))[1])
        with cpp.using(kernels):
            found = searched(model if precision == "float32" else in_int8(model, kernels), selector)
    kept = slice(None) if EXACT or precision == "float32" else slice(1)  # others may change places
    found, plain = ([texts[kept] for texts in some] for some in (found, plain))
    assert [[each.tokens for each in texts] for texts in found] == [[each.tokens for each in texts] for texts in plain]
    for texts, others in zip(found, plain, strict=True):
        near = 1e-4 if precision == "float32" else 3e-4 if EXACT else FLIPPED
        assert [each.score for each in texts] == pytest.approx([each.score for each in others], abs=near)
    attends = {"attend_step", "append"} if kind in ("transformer", "rotary") else set()
    assert set(calls) == {"log_sum", "best"} | attends


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return weft.load(reverse_run, device="cpu")


@pytest.mark.parametrize("options", [{}, {"precision": "int8"}, {"precision": "int8", "beam": 4}, {"workers": 2}], ids=str)
def test_translations_are_the_same_and_do_not_depend_on_their_batch(
    kernels: Kernels, translator: Translator, options: dict[str, object]
) -> None:
    sources = [source for source, _ in open_pairs(tiny.generated("reverse", 40, "test"))]
    found = translator.translate(sources, compile=True, **options)
    plain = translator.translate(sources, **options)
    assert sum(one.ids == other.ids for one, other in zip(found, plain, strict=True)) >= 39
    few = [each for at in range(0, 40, 3) for each in translator.translate(sources[at : at + 3], compile=True, **options)]
    assert sum(one.ids == other.ids for one, other in zip(few, found, strict=True)) >= 39


@pytest.mark.parametrize(
    ("compiler", "why"), [("no-such-compiler", "C++ compiler no-such-compiler was not found"), ("false", "false failed")]
)
def test_where_they_cannot_be_compiled_it_is_said_and_decoding_goes_on(
    translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, why: str
) -> None:
    said: list[str] = []
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(translator, "warn", said.append)
    cpp._attempt.cache_clear()
    try:
        assert translator.translate("a b c", compile=True).ids == translator.translate("a b c").ids
        assert len(said) == 1 and "goes on without compiled kernels" in said[0] and why in said[0]
    finally:
        cpp._attempt.cache_clear()


def test_they_are_compiled_once(kernels: Kernels, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = (folder / "weft" / "kernels").glob("*.so")
    assert kept.suffix == ".so"
    monkeypatch.setattr(build, "_compile", lambda *given: pytest.fail("compiled again"))
    build.library()
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DOTHER"))
    with pytest.raises(pytest.fail.Exception, match="compiled again"):
        build.library()


def test_a_damaged_one_is_made_anew(kernels: Kernels, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = (folder / "weft" / "kernels").glob("*.so")
    damaged = tmp_path / "weft" / "kernels" / kept.name
    damaged.parent.mkdir(parents=True)
    damaged.write_text("cut off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_compile", lambda compiler, flags, sources, into: into.write_bytes(kept.read_bytes()))
    assert build.library().weft_linear
    assert damaged.read_bytes() == kept.read_bytes()


def test_an_installed_library_that_fits_needs_no_compiler(
    kernels: Kernels, folder: Path, translator: Translator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a platform wheel brings it. One that is damaged, or made of other sources, is not loaded."""
    (kept,) = (folder / "weft" / "kernels").glob("*.so")
    monkeypatch.setattr(build, "_compile", lambda compiler, flags, sources, into: shutil.copy(kept, into))
    monkeypatch.setattr(build, "PREBUILT", tmp_path)
    compiled = translator.translate("a b c", compile=True).ids
    installed = build.prebuild(build.instructions(), "c++", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert build.library()._name == str(installed)
    cpp._attempt.cache_clear()
    try:
        assert translator.translate("a b c", compile=True).ids == compiled
    finally:
        cpp._attempt.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        _not_loaded("no-such-compiler was not found")
    for name, other in (("FLAGS", (*build.FLAGS, "-DOTHER")), ("instructions", lambda: "NEON")):
        with monkeypatch.context() as patch:
            patch.setattr(build, name, other)
            _not_loaded("c[+][+] was not found")
    content = bytearray(installed.read_bytes())
    content[len(content) // 2] ^= 1
    installed.unlink()  # the loaded one stays as it is
    installed.write_bytes(content)
    _not_loaded("c[+][+] was not found")


def _not_loaded(why: str) -> None:
    with pytest.raises(CannotBuild, match=why):
        build.library()


def test_on_another_cpu_it_is_said_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    for avx2 in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda avx2=avx2: avx2)
        if avx2:
            assert build.instructions() == "AVX2"
        else:
            with pytest.raises(CannotBuild, match="supports neither AVX2 nor NEON"):
                build.library()
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert build.instructions() == "NEON"


def test_kernels_are_loaded_from_private_folders_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that someone else could have put into the cache is never loaded."""
    folder, compiled, loaded = tmp_path / "weft" / "kernels", list[Path](), list[Path]()

    def compile_into(compiler: str, flags: object, sources: object, into: Path) -> None:
        compiled.append(into)
        into.write_bytes(b"kernels")
        into.chmod(0o755)

    def load_library(name: str) -> Path:
        if not Path(name).exists():
            raise OSError(name)
        loaded.append(Path(name))
        return Path(name)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(build.shutil, "which", lambda name: "/bin/c++")
    monkeypatch.setattr(build, "_compile", compile_into)
    monkeypatch.setattr(build.ctypes, "CDLL", load_library)
    for _ in range(2):
        build.library()
    (kept,) = compiled
    assert loaded == [kept, kept] and kept.parent == folder and folder.stat().st_mode & 0o777 == 0o700

    kept.chmod(0o777)
    build.library()
    assert compiled == [kept, kept], "others could have written it, so it is compiled again"

    folder.chmod(0o777)
    with pytest.warns(UserWarning, match="others may write to it"):
        build.library()
    assert loaded[-1] == compiled[-1] and loaded[-1].parent not in (folder, tmp_path)

    folder.chmod(0o700)
    monkeypatch.setattr(file_access, "ROOT", -2)
    monkeypatch.setattr(build.os, "geteuid", lambda: -1)
    with pytest.warns(UserWarning, match="it is not yours"):
        build.library()
    assert loaded[-1] == compiled[-1] and loaded[-1].parent not in (folder, tmp_path) and len(compiled) == 4
