"""Language modelling from a text to a text: streams, what is carried, resuming, scores, and what is said when it fails."""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import weft
from weft.config.registry import build
from weft.config.sections import load_config
from weft.data.batch import PAD, Batch, Position
from weft.data.tokenizers.word_character_byte import ByteTokenizer
from weft.errors import ConfigError, DataError, RunError
from weft.explain.html_page import Section
from weft.layers.decoder_state import leaves
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.models.language_model import LanguageModel
from weft.runs.translator import load_trained
from weft.runs.weight_files import read_tensors
from weft.tasks.base import TaskContext
from weft.tasks.language_modeling import explanation
from weft.tasks.language_modeling.data import Streams, TextFile, in_streams, read_text, windows
from weft.tasks.language_modeling.predictor import GenerationPredictor, StreamingDetokenizer
from weft.tasks.language_modeling.segment_recurrence import SegmentRecurrence
from weft.tasks.language_modeling.task import LanguageModelTask
from weft.training import checkpoint
from weft.training.validate_and_save import Result

TEXT = "".join(f"{k % 7} is {'abcdefg'[k % 7]}, \u00e4h.\n" for k in range(300))

SETTINGS: dict[str, Any] = {
    "data.tokenizer": {"kind": "characters", "byte_fallback": False},
    "model.dim": 16,
    "model.heads": 2,
    "model.feedforward": 32,
    "model.decoder_layers": 2,
    "task.segment": 16,
    "task.memory": 16,
    "train.steps": 6,
    "train.batch_tokens": 64,
    "train.validate_every": 0,
    "train.tensorboard": False,
    "train.device": "cpu",
    "train.threads": 1,
}
"""Written over lm-tiny."""

RECURRENT = {"model.decoder_self": {"kind": "recurrent"}, "task.carry": "state"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def train(out: Path, text: Path, settings: Mapping[str, Any] | None = None, **options: Any) -> Result:
    return weft.train("lm-tiny", out=out, data=str(text), set={**SETTINGS, **(settings or {})}, **options)


def make(decoder_self: str = "xl_relative", layers: int = 2) -> LanguageModel:
    torch.manual_seed(0)
    spec = {"kind": "language_model", "dim": 16, "heads": 2, "feedforward": 32, "decoder_layers": layers, "dropout": 0.0}
    made = build_model({**spec, "position": "none", "decoder_self": decoder_self}, Sizes(30, 30, True))
    assert isinstance(made, LanguageModel)
    return made.eval()


# --- the text


def test_a_text_is_its_lines_with_their_ends(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\n\ntw\u00f6\n".encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"three"))
    files = [TextFile(str(tmp_path / name)) for name in ("a.txt", "b.txt.gz")]
    found = read_text(files, ByteTokenizer(), str(tmp_path / "cache"))
    assert ByteTokenizer().decode(found.tokens.tolist()) == "one\n\ntw\u00f6\nthree\n"
    assert (found.characters, found.bytes, len(found)) == (15, 16, 16)
    again = read_text(files, ByteTokenizer(), str(tmp_path / "cache"))
    assert again.characters == 15
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("groups", [1, 3])
def test_streams_go_on_where_they_were(groups: int) -> None:
    tokens = np.arange(4, 1004)
    streams = Streams(tokens, segment=10, rows=4, groups=groups, seed=1)
    stream = streams.stream(Position())
    before: dict[int, Tensor] = {}
    seen: list[int] = []
    position = Position()
    for _ in range(streams.steps * groups):
        batch, position = next(stream)
        assert torch.equal(batch.labels[:, :-1], batch.tokens[:, 1:])
        assert batch.fresh == (batch.group not in before)
        if not batch.fresh:
            assert torch.equal(batch.tokens[:, 0], before[batch.group])
        before[batch.group] = batch.labels[:, -1]
        seen += batch.labels.flatten().tolist()
    assert position == Position(1, 0, 0)
    assert len(seen) == len(set(seen)) > 1000 - 2 * 10 * 4 * groups
    following, _ = next(stream)
    assert following.fresh
    first, _ = next(streams.stream(Position()))
    assert not torch.equal(following.tokens, first.tokens)  # the next epoch is cut elsewhere


def test_streams_are_entered_anywhere() -> None:
    streams = Streams(np.arange(4, 504), segment=10, rows=3, groups=2, seed=1)
    stream, found = streams.stream(Position()), []
    for _ in range(3 * streams.steps * 2):
        found.append(next(stream))
    for place in (0, 5, 17, 40):
        batch, after = next(streams.stream(found[place][1]))
        assert torch.equal(batch.tokens, found[place + 1][0].tokens)
        assert (batch.group, batch.fresh, after) == (found[place + 1][0].group, found[place + 1][0].fresh, found[place + 1][1])


@pytest.mark.parametrize(("extent", "stride"), [(10, 10), (10, 3), (7, 1), (500, 500)])
def test_windows_count_every_label_once(extent: int, stride: int) -> None:
    tokens, counted = np.arange(4, 101), []
    for inputs, labels in windows(tokens, extent, stride, rows=4):
        real = labels != PAD
        assert torch.equal(labels[real], inputs[real] + 1)
        counted += labels[real].tolist()
        for row in range(len(inputs)):
            first = int(real[row].int().argmax())
            assert inputs[row, 0] == 4 or first >= min(extent, 96) - stride
    assert sorted(counted) == list(range(5, 101))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_evaluation_in_streams_counts_every_label_once(count: int) -> None:
    tokens, counted, before = np.arange(4, 101), [], None
    for inputs, labels in in_streams(tokens, 10, count):
        real = labels != PAD
        assert torch.equal(labels[real], inputs[real] + 1)
        counted += labels[real].tolist()
        if before is not None:
            assert torch.equal(inputs[real[:, 0], 0], before[real[:, 0]])
        before = labels[:, -1]
    assert sorted(counted) == list(range(5, 101))


# --- what is carried


def test_with_memory_enough_segments_are_read_as_one_text() -> None:
    """One layer sees as far as its memory; two would see further, and so differ from one text only by what is cut off."""
    model, tokens = make(layers=1), torch.randint(4, 30, (2, 40))
    whole = model(tokens).hidden
    carrying, carried, found = SegmentRecurrence("memory", 40), None, []
    for piece in tokens.split(10, 1):
        features, carried = carrying.read(model, piece, carried)
        found.append(features.hidden)
    torch.testing.assert_close(torch.cat(found, 1), whole, atol=1e-5, rtol=1e-4)


def test_memory_has_its_length_and_no_gradient() -> None:
    model, tokens = make(), torch.randint(4, 30, (2, 30))
    carrying, carried = SegmentRecurrence("memory", 12), None
    for piece in tokens.split(10, 1):
        _, carried = carrying.read(model, piece, carried)
        assert not any(leaf.requires_grad for leaf in leaves(carried))
    assert [tuple(leaf.shape) for leaf in leaves(carried)] == [(2, 12, 16)] * 2
    assert SegmentRecurrence("memory", 0).read(model, tokens)[1] is None


@pytest.mark.parametrize("kind", ["recurrent", "linear", "convolution"])
def test_states_go_on_exactly(kind: str) -> None:
    model, tokens = make(kind), torch.randint(4, 30, (2, 30))
    carrying, carried, found = SegmentRecurrence("state"), None, []
    carrying.check(model, 10)
    for piece in tokens.split(10, 1):
        features, carried = carrying.read(model, piece, carried)
        restored = carrying.restore(model, [leaf.clone() for leaf in leaves(carried)])
        assert all(torch.equal(a, b) for a, b in zip(leaves(carried), leaves(restored), strict=True))
        found.append(features.hidden)
        carried = restored
    torch.testing.assert_close(torch.cat(found, 1), model(tokens).hidden, atol=1e-5, rtol=1e-4)


def test_carrying_nothing_begins_anew() -> None:
    model, piece = make(), torch.randint(4, 30, (2, 10))
    carrying = SegmentRecurrence("nothing")
    first, carried = carrying.read(model, piece)
    assert carried is None
    assert torch.equal(carrying.read(model, piece, carried)[0].hidden, first.hidden)


# --- training


@pytest.mark.parametrize("settings", [{}, RECURRENT, {"task.carry": "nothing", "model.position": "learned"}], ids=str)
def test_an_interrupted_run_ends_with_the_same_bits(settings: dict[str, Any], text: Path, tmp_path: Path) -> None:
    """With dropout, several micro-batches a step, and a stop in the middle of an epoch."""
    common = {**settings, "train.accumulate": 2, "train.steps": 8, "model.dropout": 0.2}
    common["train.schedule"] = {"kind": "inverse_sqrt", "warmup": 4}
    train(tmp_path / "whole", text, common)
    train(tmp_path / "parts", text, {**common, "train.steps": 5})
    carries = settings.get("task.carry") != "nothing"
    assert bool(checkpoint.carried(checkpoint.folder_of(tmp_path / "parts", 5))) == carries
    weft.train(out=tmp_path / "parts", resume=True, set={"train.steps": 8})
    for name in ("model", "optimizer", *(["carried"] if carries else [])):
        whole, parts = (
            read_tensors(checkpoint.folder_of(tmp_path / run, 8) / f"{name}.safetensors") for run in ("whole", "parts")
        )
        assert whole.keys() == parts.keys()
        assert all(torch.equal(value, parts[key]) for key, value in whole.items()), name


def test_what_was_carried_matters_after_a_resume(text: Path, tmp_path: Path) -> None:
    """A resume without it would go another way, so the test above can fail."""
    train(tmp_path / "run", text, {"train.steps": 3})
    task = build("weft.tasks:TASKS", load_config(tmp_path / "run" / "config.yaml").task, _setting(tmp_path / "run"))
    assert isinstance(task, LanguageModelTask)
    model = task.build(task.config.model, task.prepare())
    batch, _ = next(task.batches(Position(0, 0, 3)))
    without, carried = _loss(task, model, batch), checkpoint.carried(checkpoint.folder_of(tmp_path / "run", 3))
    task.load_extra_state(carried)
    assert _loss(task, model, batch) != without
    task.load_extra_state(carried)
    assert _loss(task, model, replace(batch, fresh=True)) == without  # streams that begin leave it behind
    _loss(task, model, batch)
    again = next(iter(task.losses(model, replace(batch, fresh=True), 1))).total.item()
    assert again == without


@pytest.mark.parametrize("settings", [{}, RECURRENT], ids=["memory", "state"])
def test_what_is_carried_stays_in_its_place(settings: dict[str, Any], text: Path, tmp_path: Path) -> None:
    """A recorded step looks for it there, at the beginning of an epoch and later; and it is what the next segment needs."""
    train(tmp_path / "run", text, {**settings, "train.steps": 1})
    config = load_config(tmp_path / "run" / "config.yaml")
    task = build("weft.tasks:TASKS", config.task, _setting(tmp_path / "run"))
    assert isinstance(task, LanguageModelTask) and task.info.capturable
    model = task.build(task.config.model, task.prepare())
    assert isinstance(model, LanguageModel)
    model.eval()
    places, wanted = set(), None
    for number, (batch, _) in zip(range(5), task.batches(Position()), strict=False):
        batch = replace(batch, fresh=number in (0, 3))
        for loss in task.losses(model, batch, 1):
            loss.total.backward()
        wanted = task.carrying.read(model, batch.tokens, None if batch.fresh else wanted)[1]
        carried = leaves(task.states._carried[batch.group])
        places.add(tuple(leaf.data_ptr() for leaf in carried))
        for mine, theirs in zip(carried, leaves(wanted), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert len(places) == 1


@pytest.mark.parametrize("settings", [{}, RECURRENT], ids=["memory", "state"])
def test_a_skipped_step_leaves_what_is_carried(settings: dict[str, Any], text: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", text, {**settings, "train.steps": 1})
    task = build("weft.tasks:TASKS", load_config(tmp_path / "run" / "config.yaml").task, _setting(tmp_path / "run"))
    model = task.build(task.config.model, task.prepare())

    def step(batch: Batch, *, broken: bool = False) -> bool:
        """Whether the loss is finite; it is not if a weight is not."""
        weight = next(model.parameters()).data
        whole = weight.clone()
        if broken:
            weight.fill_(math.nan)
        totals = [loss.total for loss in task.losses(model, batch, 1)]  # all of them: the state moves behind the last
        weight.copy_(whole)
        return all(bool(total.isfinite()) for total in totals)

    first, second, third = (replace(batch, fresh=number == 0) for number, (batch, _) in zip(range(3), task.batches(Position())))
    assert not step(first, broken=True), "there is nothing carried yet"
    assert step(second)
    before = task.extra_state()
    assert not step(second, broken=True)
    after = task.extra_state()
    assert before and all(torch.equal(before[name], after[name]) for name in before)
    assert step(third)


def _setting(run: Path) -> TaskContext:
    return TaskContext(load_config(run / "config.yaml"), run)


def _loss(task: LanguageModelTask, model: torch.nn.Module, batch: Batch) -> float:
    task.states._carried.clear()
    return next(iter(task.losses(model.eval(), batch, 1))).total.item()


def test_scores_agree_with_each_other_and_with_the_formula(text: Path, tmp_path: Path) -> None:
    result = train(tmp_path / "run", text, {"data.tokenizer": "bytes"}, valid=str(text))
    scores = result.scores
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    assert scores["bits_per_byte"] == pytest.approx(scores["loss"] / math.log(2))
    characters, size = len(TEXT), len(TEXT.encode())
    assert size > characters
    assert scores["bits_per_character"] == pytest.approx(scores["bits_per_byte"] * size / characters)
    again = weft.load_generator(tmp_path / "run", device="cpu").score(str(text))
    assert again == pytest.approx(scores)


def test_a_score_is_that_of_the_text_token_by_token(text: Path, tmp_path: Path) -> None:
    """One stream and a memory as long as the text, in one layer: what the model says of the text in one piece."""
    train(tmp_path / "run", text, {"model.decoder_layers": 1, "train.steps": 1})
    (tmp_path / "short.txt").write_text(TEXT[:95])
    sets = ["task.evaluation_memory=200", "task.evaluation_streams=1"]
    generator = weft.load_generator(tmp_path / "run", device="cpu", set=sets)
    ids = torch.tensor([generator.task.tokenizer.encode(TEXT[:95] + "\n")])
    logp = generator.model.decoder.logits(generator.model(ids[:, :-1]).hidden).log_softmax(-1)
    wanted = -logp.gather(-1, ids[:, 1:, None]).mean().item()
    for stride in (0, 1, 5):
        score = weft.load_generator(tmp_path / "run", device="cpu", set=[*sets, f"task.stride={stride}"])
        assert score.score(str(tmp_path / "short.txt"))["loss"] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train.batch_tokens": 8}, "train.batch_tokens: 8 tokens are less than one segment of 16"),
        ({"task.segment": 4096, "train.batch_tokens": 8192}, "too few for segments of 4,096"),
        ({"data.tokenizer": "words"}, "data.tokenizer: words does not keep line ends; use characters"),
        ({"model.position": "sinusoidal"}, "model.position: sinusoidal positions count from the beginning of a segment"),
        ({"task.carry": "state"}, "the state grows with the text; use carry: memory"),
        ({"task.carry": "nothing", "model.position": "learned", "model.max_length": 8}, "more than the model's 8"),
        ({"task.stride": 17}, "task.stride: 17 is more than the segment of 16 tokens"),
        ({"model": "transformer"}, "model.kind: transformer reads a source, but running text has none"),
        ({"train.packed": True}, "packed rows"),
    ],
)
def test_what_cannot_be_is_said(settings: dict[str, Any], message: str, text: Path, tmp_path: Path) -> None:
    base = {} if "model" not in settings else {key: value for key, value in SETTINGS.items() if key.startswith("model.")}
    changed = {key: value for key, value in {**SETTINGS, **settings}.items() if key not in base}
    with pytest.raises((ConfigError, DataError), match=message):
        weft.train("lm-tiny", out=tmp_path / "run", data=str(text), set=changed)
    assert not (tmp_path / "run").exists()


@torch.no_grad()
def test_unscaled_embeddings_start_as_large_as_positions() -> None:
    """√dim larger otherwise, so that positions would be learned late."""
    for scaled, ratio in ((False, 1.0), (True, 8.0)):
        options = {"dim": 64, "decoder_layers": 1, "position": "learned", "scale_embeddings": scaled}
        model = build_model({"kind": "language_model", **options}, Sizes(500, 500, True))
        embedding = model.eval().decoder.embedding
        tokens, places = torch.arange(500)[None], torch.zeros(1, 500, dtype=torch.long)
        position = embedding.position(torch.arange(1000)[None])
        token = embedding(tokens, places) - embedding.position(places)
        assert (token.std() / position.std()).item() == pytest.approx(ratio, rel=0.1)


def test_pairs_are_no_text_and_a_language_model_does_not_translate(text: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="text is needed here, not pairs"):
        train(tmp_path / "run", Path(f"{text},{text}"))
    translation = {key: value for key, value in SETTINGS.items() if not key.startswith("task.")} | {"task": "translation"}
    with pytest.raises(ConfigError, match=r"model\.kind: a LanguageModel has no encoder"):
        weft.train("lm-tiny", data=f"{text},{text}", out=tmp_path / "run", set=translation)
    with pytest.raises(ConfigError, match=r"model\.base\.kind: a LanguageModel has no encoder"):
        build_model({"kind": "pointer", "base": "language_model"}, Sizes(30, 30, True))


# --- generating


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "lm"
    train(out, text, {"train.steps": 30})
    return out


def test_an_explanation_has_the_probabilities_and_the_causal_heads(run: Path) -> None:
    trained = load_trained(run, device="cpu")
    predictor = trained.predictor()
    assert isinstance(predictor, GenerationPredictor)
    reading = explanation.read_text(predictor, TEXT[:12])
    ids = predictor.encode(TEXT[:12])
    with torch.no_grad():
        chances = trained.model.decoder.logits(trained.model(torch.tensor([ids])).hidden)[0].softmax(-1)
    assert reading.probabilities == pytest.approx([float(chances[place, token]) for place, token in enumerate(ids[1:])])
    assert reading.perplexity == pytest.approx(float(np.exp(-np.log(reading.probabilities).mean())))
    assert len(reading.candidates) == len(reading.tokens) == len(ids), "also for the token behind the last"
    assert reading.candidates[0][0][1] == pytest.approx(float(chances[0].max()))
    assert [each.shape for each in reading.attention.values()] == [(2, len(ids), len(ids))] * 2
    for weights in reading.attention.values():
        np.testing.assert_allclose(np.triu(weights, 1), 0)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    page = trained.explain("a <b> & c", run="lm")
    assert isinstance(page, Section) and page.said == "a <b> & c"
    assert page.body.count("<figure") == 4 and "perplexity" in page.body and "<b>" not in page.body
    inside = trained.explain("abc", inside=True).inside
    assert inside is not None and inside["decoder.probabilities"].labels["token"] == ["a", "b", "c"]
    assert inside["decoder.logits"].labels["vocabulary"][inside["logits"].values[-1].argmax()] in trained.explain("abc").body
    long = explanation.read_text(predictor, TEXT * 20)
    assert len(long.tokens) == predictor.context and long.left_out, "the end of a text that is longer than the context"
    assert "only the last" in explanation.reading_page(long)


def test_what_cannot_be_explained_says_why(run: Path, text: Path, tmp_path: Path) -> None:
    trained = load_trained(run, device="cpu")
    with pytest.raises(DataError, match="nothing to explain in an empty text"):
        trained.explain(" ")
    with pytest.raises(ConfigError, match="a target can be given to runs that translate"):
        trained.explain("a", target="b")
    train(tmp_path / "run", text, RECURRENT)
    assert "shows no attention weights" in load_trained(tmp_path / "run", device="cpu").explain(TEXT[:9]).body


def test_sampling_depends_on_the_seed_alone(run: Path) -> None:
    generator = weft.load_generator(run, device="cpu")
    first, second = generator.generate("3 is", tokens=50, count=2, seed=4)
    assert first.text != second.text
    assert len(first.ids) == 50
    assert generator.generate("3 is", tokens=50, count=1, seed=4)[0].text == first.text
    assert generator.generate("3 is", tokens=50, count=1, seed=5)[0].text != first.text
    other = [generator.generate("3 is", tokens=9, temperature=0, seed=seed)[0].text for seed in (1, 2)]
    assert other[0] == other[1] == generator.generate("3 is", tokens=9, beam=1)[0].text


@pytest.mark.parametrize("options", [{"seed": 2}, {"beam": 1}, {"beam": 3}], ids=str)
def test_what_is_heard_is_what_is_given(run: Path, options: dict[str, Any]) -> None:
    generator, heard = weft.load_generator(run, device="cpu"), []
    found = generator.generate("3 is", tokens=70, hear=heard.append, **options)[0]
    assert "".join(heard) == found.text
    assert len(heard) == len(found.ids) == 70  # more than a window of 32


def test_a_score_is_the_log_probability_within_a_window(run: Path) -> None:
    generator = weft.load_generator(run, device="cpu")
    for options in ({"seed": 2}, {"beam": 1}, {"beam": 4}):
        found = generator.generate("3 is", tokens=20, **options)[0]
        ids = torch.tensor([[*generator.task.tokenizer.encode("3 is"), *found.ids]])
        logp = generator.model.decoder.logits(generator.model(ids[:, :-1]).hidden).log_softmax(-1)
        wanted = logp.gather(-1, ids[:, 1:, None])[0, -20:].sum().item()
        assert found.score == pytest.approx(wanted, abs=1e-3)


def test_a_text_goes_on_in_windows_of_what_the_model_knows(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, longest = weft.load_generator(run, device="cpu"), []
    read = type(generator.model.decoder).hidden_states

    def note(self: Any, tokens: Tensor, state: Any, layout: Any = None) -> Any:
        found = read(self, tokens, state, layout)
        longest.append(int(found.state.fed.max()))
        return found

    monkeypatch.setattr(type(generator.model.decoder), "hidden_states", note)
    generator.generate("3 is a" * 30, tokens=100)
    assert max(longest) <= 32 == SETTINGS["task.segment"] + SETTINGS["task.memory"]


def test_a_state_of_one_size_needs_no_windows(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "run", text, {**RECURRENT, "train.steps": 2})
    generator, sizes, fed = weft.load_generator(tmp_path / "run", device="cpu"), set(), []
    read = type(generator.model.decoder).hidden_states

    def note(self: Any, tokens: Tensor, state: Any, layout: Any = None) -> Any:
        found = read(self, tokens, state, layout)
        sizes.add(sum(leaf.numel() for leaf in leaves(found.state)))
        fed.append(int(found.state.fed.max()))
        return found

    monkeypatch.setattr(type(generator.model.decoder), "hidden_states", note)
    generator.generate("3 is", tokens=200)
    assert fed == list(range(4, 204))[: len(fed)] and len(fed) == 200
    assert len(sizes) == 1


def test_no_text_is_generated_that_is_no_text(run: Path) -> None:
    generator = weft.load_generator(run, device="cpu")
    found = generator.generate(tokens=300, temperature=3.0)[0]
    assert min(found.ids) >= 4
    with pytest.raises(ConfigError, match="at least one token"):
        generator.generate("a", tokens=0)
    with pytest.raises(RunError, match="weft generate"):
        weft.load(run)


def test_a_scribe_writes_whole_characters_line_by_line() -> None:
    tokenizer = ByteTokenizer()
    said = [StreamingDetokenizer(tokenizer, tokenizer.encode("a\nb"))] * 5
    assert [scribe(token) for scribe, token in zip(said, tokenizer.encode("\u00e4\n\nc"), strict=True)] == [
        "",
        "\u00e4",
        "\n",
        "\n",
        "c",
    ]


def test_subwords_are_put_together_again(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    train(tmp_path / "run", path, {"data.tokenizer": {"kind": "bpe", "byte_fallback": False}, "data.vocabulary": 40})
    generator = weft.load_generator(tmp_path / "run", device="cpu")
    tokenizer = generator.task.tokenizer
    generating = generator.predictor()
    ids = generating.encode(TEXT[:200])
    scribe = StreamingDetokenizer(tokenizer, [])
    assert "".join(scribe(token) for token in ids).removeprefix(" ") == TEXT[:200]
