"""Predictors: the budget of batches, fields that a search accepts, cancelling, options in their old and new forms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
import weft.decoding.predictor as predictor_module
from tests.helpers import tiny
from weft.config.sections import DecodeSection, load_config, save_config
from weft.decoding.decoding_options import DecodingOptions, changed, resolve_options
from weft.decoding.predictor import BatchItem, Predictor
from weft.decoding.search_loop import Cancellation
from weft.errors import ConfigError
from weft.runs.translator import Translator
from weft.tasks.base import LOSS, Measure
from weft.tasks.translation.glossary import Terms


@pytest.fixture(scope="module")
def translator(reverse_run: Path) -> Translator:
    return weft.load(reverse_run, device="cpu")


class Lengths(Predictor[str, int]):
    """The length of each line; remembers its batches."""

    def __init__(self, resolved: DecodingOptions) -> None:
        super().__init__(None, resolved)
        self.batches: list[int] = []
        self.stopped: list[set[int]] = []

    def encode_input(self, inputs: Any, first_line: int) -> list[list[BatchItem]]:
        return [[BatchItem([1] * len(text))] if text else [] for text in inputs]

    def run(self, parts: list[BatchItem], control: Cancellation | None = None) -> list[int]:
        self.batches.append(len(parts))
        return [len(part.ids) for part in parts]

    def join_outputs(self, given: str, parts: list[BatchItem], results: list[int]) -> int:
        return results[0] if results else 0


class Alone(Lengths):
    forks = False


def resolved(translator: Translator, **options: Any) -> DecodingOptions:
    auto = options.pop("auto_workers", 1)
    return resolve_options(changed(translator.config.decode, options), translator.model.device, auto_workers=auto)


def test_a_predictor_that_does_not_fork_keeps_the_whole_budget(translator: Translator) -> None:
    options = resolved(translator, batch_tokens=100, auto_workers=4)
    assert (Alone(options).budget, Lengths(options).budget) == (100, 25)
    alone = Alone(options)
    assert list(alone.predict(["x" * 10] * 10, together=True)) == [10] * 10
    assert alone.batches == [10]


def test_a_classifier_is_not_slowed_down_by_workers(tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    file.write_text("".join(f"{colour} thing\t{colour}\n" for colour in ("red", "blue")) * 20)
    settings = {**tiny.SETTINGS, "task": "classification", "train.steps": 2, "train.batch_tokens": 64}
    weft.train("transformer-tiny", data=str(file), out=tmp_path / "run", set=settings)
    translator = weft.load(tmp_path / "run", device="cpu")
    predictor = translator.predictor(auto_workers=8, batch_tokens=64)
    assert predictor.budget == 64 and predictor.workers == 1
    found = list(predictor.predict([predictor.parse_input("a red thing")] * 3))
    assert [each.text for each in found] == [translator.translate("a red thing").text] * 3
    assert type(found[0]).__name__ == "Label"
    with pytest.raises(weft.WeftError, match="prefix: a label is not written word by word"):
        translator.translate("a", prefix="b")


def test_blank_inputs_need_no_batch_and_outputs_are_in_order(translator: Translator) -> None:
    predictor = Lengths(resolved(translator, batch_tokens=12))
    lines = ["aaa", "", "b", "cccccc", ""]
    assert list(predictor.predict(lines)) == [3, 0, 1, 6, 0]
    assert [predictor.expected_cost(part) for parts in predictor.encode_input(lines, 1) for part in parts] == [
        (1, 3),
        (1, 1),
        (1, 6),
    ]


def test_windows_are_chosen_by_together_and_not_by_the_type_of_the_stream(translator: Translator) -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "ab"

    next(Lengths(resolved(translator)).predict(endless()))
    assert read == 8


@pytest.mark.parametrize("together", [False, True])
def test_batches_follow_from_the_places_of_lines(
    translator: Translator, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictor_module, "WINDOWS", (2, 5, 8))
    monkeypatch.setattr(predictor_module, "TOGETHER", (16,))
    lines = ["x" * (7 * place % 5 + 1) for place in range(45)]
    whole, part = (Lengths(resolved(translator, batch_tokens=30, auto_workers=workers)) for workers in (1, 1))
    list(whole.predict(lines, together=together))
    for first in (0, 16, 32):
        list(part.predict(lines[first : first + 16], together=together, first_line=first + 1))
    assert part.batches == whole.batches and len(set(whole.batches)) > 1


def test_fewer_processes_compute_the_batches_of_all_workers(translator: Translator) -> None:
    """Each with one thread, as a worker has it."""
    lines, threads = ["x" * (7 * place % 5 + 1) for place in range(45)], list[int]()

    class Threads(Lengths):
        def run(self, parts: list[BatchItem], control: Cancellation | None = None) -> list[int]:
            threads.append(torch.get_num_threads())
            return super().run(parts, control)

    spread = Threads(resolved(translator, batch_tokens=60, auto_workers=4))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(spread.predict(lines, together=True, processes=1)) == [len(line) for line in lines]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    parts = [part for parts in spread.encode_input(lines, 1) for part in parts]
    assert spread.batches == [len(batch) for batch in spread._batches(parts)] and max(spread.batches) <= 12
    assert set(threads) == {1}


def test_inputs_that_nobody_waits_for_are_not_run(translator: Translator) -> None:
    predictor = Lengths(resolved(translator, batch_tokens=4))
    assert list(predictor.predict(["aa", "bb", "cc"], wanted=lambda number: number != 1)) == [2, 0, 2]
    assert predictor.batches == [1, 1]


def test_a_running_row_is_stopped_and_the_others_are_not_changed(translator: Translator) -> None:
    predictor = translator.predictor(beam=3, min_length=60, max_length=90, max_ratio=90.0)
    inputs = [predictor.parse_input(text) for text in ("a b c", "d e f g")]
    plain = list(predictor.predict(inputs, together=True))
    asked = 0

    def wanted(number: int) -> bool:
        nonlocal asked
        asked += number == 0
        return number != 0 or asked < 4

    stopped = list(predictor.predict(inputs, together=True, wanted=wanted))
    assert stopped[1].ids == plain[1].ids
    assert 0 < len(stopped[0].ids) < 30 < len(plain[0].ids)


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3}, {"sample": True}])
def test_every_selector_ends_a_stopped_row(translator: Translator, options: dict[str, Any]) -> None:
    predictor = translator.predictor(min_length=60, max_length=90, max_ratio=90.0, **options)
    (piece,) = predictor.encode_input([predictor.parse_input("a b")], 1)[0]
    control = Cancellation(1, lambda row: False)
    found = predictor.run([piece], control)
    assert control.stopped == {0}
    assert len(found[0][0].ids) < 12


def test_a_search_says_what_it_does_not_support(translator: Translator) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"search": "greedy", "terms": Terms(("b",))}, r"line 1: decode\.search: greedy does not support terms that must be"),
        ({"sample": True, "terms": Terms(("b",))}, r"line 1: decode\.search: sample does not support terms that must be"),
        ({"search": "greedy", "n_best": 2}, r"decode\.search: greedy does not support several texts per source"),
    ]
    for options, message in cases:
        with pytest.raises(ConfigError, match=message):
            translator.translate("a", **options)
    assert translator.translate("a b", search="greedy", terms=Terms(avoid=("b",))).text
    assert translator.translate("a b", search="greedy", prefix="q").text.startswith("q")


def test_coverage_and_noise_are_options_of_the_search(translator: Translator) -> None:
    lines = ["a b c", "d", "e f g a b", "c c a"]
    beam, greedy = translator.translate(lines, beam=4), translator.translate(lines, search="greedy")
    covered = translator.translate(lines, search={"kind": "beam", "coverage_penalty": 0.2}, n_best=2)
    noisy = translator.translate(lines, search={"kind": "noisy", "scale": 2.0}, n_best=2)
    for line, plain, first, other, mine in zip(lines, beam, greedy, covered, noisy, strict=True):
        assert other.text != plain.text or other.score < plain.score
        assert len(other.alternatives) == 1 and other.alternatives[0].score <= other.score
        assert mine.score >= first.score - 1e-5
        assert translator.translate(line, search={"kind": "noisy", "scale": 2.0}, n_best=2).text == mine.text
    with pytest.raises(ConfigError, match=r"decode\.search: noisy does not support terms that must be"):
        translator.translate("a", search="noisy", terms=Terms(("b",)))
    with pytest.raises(ConfigError, match=r"decode\.search\.where: TransformerDecoder has no recurrent states"):
        translator.translate("a", search={"kind": "noisy", "where": "states"})


def test_equal_inputs_are_one_key(translator: Translator) -> None:
    predictor = translator.predictor()
    first, second = (predictor.parse_input("a b", prefix="c", terms=Terms(("d",)), attention=True) for _ in range(2))
    assert first == second and len({first, second, predictor.parse_input("a b")}) == 2


OLD = {
    "beam": 7,
    "length_penalty": 0.6,
    "stop": "first",
    "sample": False,
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.9,
    "seed": 4,
}


BEAM = {"kind": "beam", "length_offset": 0.0, "coverage_penalty": 0.0}


def test_flat_keys_of_saved_runs_are_folded_in_silence(tmp_path: Path) -> None:
    assert DecodeSection(**OLD).search == {**BEAM, "width": 7, "length_penalty": 0.6, "stop": "first"}
    drawn = DecodeSection(**{**OLD, "sample": True}).search
    assert drawn == {"kind": "sample", "temperature": 0.5, "top_k": 3, "top_p": 0.9, "seed": 4}
    save_config(load_config("transformer-tiny"), tmp_path / "new.yaml")
    text = (tmp_path / "new.yaml").read_text()
    start, end = text.index("  search:"), text.index("  max_length:", text.index("  search:"))
    flat = "".join(f"  {key}: {str(value).lower()}\n" for key, value in OLD.items())
    (tmp_path / "old.yaml").write_text(text[:start] + flat + text[end:])
    assert load_config(tmp_path / "old.yaml").decode == DecodeSection(**OLD)


def test_shorthands_on_the_command_line() -> None:
    def search(*sets: str) -> dict[str, Any]:
        return load_config("transformer-tiny", [f"decode.{text}" for text in sets]).decode.search

    assert search("beam=9")["width"] == 9 == search("search.width=9")["width"]
    assert search("length_penalty=0.2")["length_penalty"] == 0.2
    assert search("sample=true", "temperature=0.3") == search("search={kind: sample, temperature: 0.3}")
    assert search("search=sample", "top_k=5")["top_k"] == 5 == search("top_k=5", "search=sample")["top_k"]
    assert search("search=greedy")["kind"] == "greedy"
    assert search("search=greedy", "length_penalty=0.3") == {"kind": "greedy", "length_penalty": 0.3}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["decode.beam=0"], r"--set decode\.beam=0: .*greater than"),
        (["decode.temperature=0.5"], r"decode\.temperature: the search beam does not use it; set decode\.search to sample"),
        (["decode.sample=true", "decode.beam=3"], r"decode\.beam: the search sample does not use it; .* beam"),
        (["decode.search=greedy", "decode.beam=3"], r"decode\.beam: the search greedy does not use it"),
        (["decode.search=beam", "decode.sample=true"], r"decode\.sample: decode\.search is beam; leave one of the two out"),
        (["decode.sample=maybe"], r"decode\.sample: must be true or false"),
        (["decode.search=baem"], r"decode\.search=baem: .*did you mean 'beam'"),
        (["decode.search=5", "decode.beam=3"], r"decode\.search=5: must be one of greedy, beam, sample"),
        (["decode.search={kind: [1]}", "decode.beam=3"], r"decode\.search"),
        (["decode.search.widht=3"], r"--set decode\.search\.widht=3: .*did you mean 'width'"),
        (["decode.rerank={kind: mbr, utility: ter}"], r"decode\.rerank.*'ter'"),
    ],
)
def test_errors_name_what_was_written(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("transformer-tiny", sets)


def test_an_error_in_a_flat_key_of_a_file_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("train:\n  steps: 3\ndecode:\n  n_best: 2\n  beam: -1\n")
    with pytest.raises(ConfigError, match=r"my\.yaml, line 5: decode\.beam: .*greater than"):
        load_config(tmp_path / "my.yaml")


def test_shorthands_from_python_follow_the_search_of_the_run(translator: Translator) -> None:
    base = changed(translator.config.decode, {"search": {"kind": "sample", "temperature": 0.4}})
    assert changed(base, {"top_k": 2}).search == {"kind": "sample", "temperature": 0.4, "top_k": 2, "top_p": 1.0, "seed": 1}
    assert changed(base, {"beam": 3}).search["kind"] == "beam"
    assert changed(base, {"sample": False}).search["kind"] == "beam"
    assert changed(base, {"search.temperature": 0.9}).search["temperature"] == 0.9


def test_measures_have_a_direction() -> None:
    bleu, nan = Measure("bleu", "BLEU"), float("nan")
    assert bleu.better(2, 1) and not bleu.better(1, 2) and not bleu.better(1, 1)
    assert LOSS.better(1, 2) and not LOSS.better(2, 1)
    for measure in (bleu, LOSS):
        assert measure.better(1, nan) and not measure.better(nan, 1) and not measure.better(nan, nan)


def test_best_by_takes_every_metric_of_the_task_in_its_direction(tmp_path: Path) -> None:
    for key in ("ter", "chrf2"):
        settings = {"train.steps": 4, "train.validate_every": 1, "train.save_every": 1, "train.best_by": key}
        result = tiny.train(tmp_path / key, settings={**settings, "train.validate_sentences": 20})
        log = [line for line in (tmp_path / key / "log.jsonl").read_text().splitlines() if '"validation"' in line]
        values = [float(line.split(f'"{key}": ')[1].split(",")[0].rstrip("}")) for line in log]
        assert len(values) == 4 and result.scores[key] == (min if key == "ter" else max)(values)
    with pytest.raises(ConfigError, match=r"train\.best_by: the task does not measure 'blue'; it measures bleu, chrf2, ter"):
        tiny.train(tmp_path / "other", settings={"train.best_by": "blue"})


def test_inputs_that_come_slowly_are_answered_at_once_and_fast_ones_in_batches(translator: Translator) -> None:
    """`arrived` inputs can be read without waiting. Reading another would wait, so nothing may read it before it has come."""
    arrived, read = 1, 0

    def lines() -> Iterator[str]:
        nonlocal read
        while read < 100:
            assert read < arrived, "an answer waits for the next input"
            read += 1
            yield "x" * read

    predictor = Lengths(resolved(translator, batch_tokens=100_000))
    found = predictor.predict(lines(), ready=lambda: read < arrived)
    for number in (1, 2, 3):
        assert next(found) == number
        assert read == arrived == number, "read ahead, or not at all"
        arrived += 1
    arrived = 100
    assert list(found) == list(range(4, 101))
    assert predictor.batches[:3] == [1, 1, 1]
    assert len(predictor.batches) == 4, "97 inputs that are ready make one batch"


def test_packages_of_others_import_predictors_by_their_own_path() -> None:
    from weft.inference import predictor

    assert predictor.Predictor is Predictor
