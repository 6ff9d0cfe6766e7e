"""The scripts in benchmarks/ run and compare what they claim: systems within one budget, test words not seen in training."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.helpers import tiny
from weft.attention import ATTENTIONS
from weft.attention.core.sparsity_patterns import PATTERNS
from weft.attention.mixers import MIXERS
from weft.config.registry import build
from weft.config.sections import load_config
from weft.data.formats import open_pairs
from weft.data.phrases.ngram_language_model import LEAST
from weft.evaluation.contrastive_pairs import read_contrasts
from weft.layers.lora import Lora, add_adapters
from weft.models import POOLINGS
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model

FOLDER = Path(__file__).parent.parent / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8"))


@pytest.fixture(autouse=True)
def _import_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_prints_its_usage(script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(script).main()
    assert end.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_the_time_of_every_sink_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overhead = importlib.import_module("watching_overhead")
    for owner, name in ((overhead.train_in_folder, "open_log"), (overhead.CorpusTask, "samples")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # and back
    overhead.time_sinks()
    tiny.train(tmp_path / "run", settings={"train.steps": 2})
    assert {"ResultFiles", "JsonLines", "PlainLines"} <= {name for name, seconds in overhead.SPENT.items() if seconds > 0}


def test_takes_and_speakers_of_spoken_digits_do_not_cross_the_split() -> None:
    digits = importlib.import_module("digits")
    found = [
        digits.Take(digit, speaker, number, Path(f"{digit}_{speaker}_{number}.wav"))
        for digit in range(10)
        for speaker in ("ann", "bob", "zoe")
        for number in range(5, 20)
    ]
    made = digits.lists(digits.split(found), 50, np.random.default_rng(1))
    used = {name: {take for string in some for take in string} for name, some in made.items()}
    assert {take.speaker for take in used["unseen"]} == {"zoe"}
    assert not any(take.speaker == "zoe" for name in used if name != "unseen" for take in used[name])
    assert not (used["train"] & (used["valid"] | used["test"] | used["long"] | used["single"]))
    assert not (used["valid"] & (used["test"] | used["long"] | used["single"]))
    assert all(len({take.speaker for take in string}) == 1 for some in made.values() for string in some)
    assert {len(string) for string in made["long"]} == {8, 9, 10}
    assert max(len(string) for string in made["train"]) == 7
    assert sum(len(string) == 1 for string in made["train"]) == digits.SINGLE * len(used["train"])


def test_subsets_of_the_data_are_contained_in_each_other(tmp_path: Path) -> None:
    fit = importlib.import_module("fit")
    (tmp_path / "multi30k").mkdir()
    for split, count in (("train", 29_000), ("test_2016_flickr", 3)):
        for side in ("en", "de"):
            (tmp_path / "multi30k" / f"{split}.{side}").write_text("".join(f"{side} {n} !\n" for n in range(count)))
    few, more = (list(fit.open_pairs(fit.subset(tmp_path, size, tmp_path / "out"))) for size in (500, 3_000))
    assert len(set(few)) == 500 and len(set(more)) == 3_000 and set(few) < set(more)
    assert all(source[3:] == target[3:] for source, target in few)
    floors = fit.floors(tmp_path, 500, tmp_path)
    assert floors.keys() == {"source copied", "most frequent target"} and all(each["chrF2"] > 0 for each in floors.values())


def test_auto_is_compared_with_the_best_fixed_recipe(tmp_path: Path) -> None:
    fit = importlib.import_module("fit")

    def outcome(recipe: str, bleu: float) -> Any:
        return fit.Outcome(fit.Run(recipe, recipe, ""), scores={"test": {"BLEU": bleu}})

    found = [outcome("auto", 20.3), outcome("transformer-small", 20.0), outcome("rnn-bahdanau", 17.0)]
    assert fit.verdict(500, found) == "500 pairs: auto +0.30 BLEU against the best fixed recipe, transformer-small.\n"
    assert fit.verdict(500, found[1:]) == ""
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- rules -->\nold\n<!-- /rules -->\nb\n")
    fit.write_rules(page)
    assert page.read_text() == f"a\n<!-- rules -->\n{fit.rules_table()}<!-- /rules -->\nb\n"


def test_the_documentation_shows_the_rules_of_auto() -> None:
    text, table = (FOLDER.parent / "docs" / "recipes.md").read_text("utf-8"), importlib.import_module("fit").rules_table()
    assert text.partition("<!-- rules -->\n")[2].partition("<!-- /rules -->")[0] == table, (
        "run `python benchmarks/fit.py --write-rules docs/recipes.md`"
    )


def test_layers_cost_what_the_formulas_say_and_translators_see_as_far() -> None:
    complexity = importlib.import_module("complexity")
    for name, (kind, _, formula) in complexity.LAYERS.items():
        part, x = complexity.layer(kind, 32), torch.randn(1, 300, 32)
        counted = complexity.operations(lambda part=part, x=x: complexity.call(part, x))
        assert counted == pytest.approx(formula(300, 32), rel=0.05), name
    recipe, sets, _ = complexity.TRANSLATORS["ConvS2S, 5 layers in the decoder"]
    assert complexity.reach(complexity.translator(recipe, sets), 40) == (40, 11)


def test_a_training_that_several_tables_share_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = importlib.import_module("comparisons")
    monkeypatch.setattr(comparisons, "write_ambiguous", lambda folder, out: {})
    options = comparisons.parser().parse_args([str(tmp_path), "--out", str(tmp_path), "--groups", "ladder,choices,agreement"])
    jobs = {job.run.name: job for job in comparisons.jobs(options)}
    assert jobs["ladder-transformer@2"].rows == ["ladder/transformer", "choices/rotary", "choices/wiring-last"]
    assert list(jobs["choices-fed-truth@1"].decodings) == ["noise", "greedy"]
    assert len({job.key for job in jobs.values()}) == len(jobs)
    order = [*jobs]
    assert order.index("choices-doubly@1") < order.index("ladder-cnn-0@1") < order.index("choices-doubly@2")
    assert order.index("choices-doubly@2") < order.index("agreement-rnn@1")
    patterns = ["choices/rotary@2", "agreement/heads-*@1"]
    first = sorted(jobs.values(), key=lambda job: comparisons.place(job, patterns))
    assert [job.run.name for job in first[:3]] == ["ladder-transformer@2", "agreement-heads-1@1", "agreement-heads-2@1"]


def test_results_prefer_scores_to_a_failure_and_rows_have_their_own_decoding(tmp_path: Path) -> None:
    comparisons = importlib.import_module("comparisons")
    facts = {"parameters": 8.6e6, "log": "", "rows": ["choices/fed-truth", "choices/greedy"]}
    scores = {"test": {"BLEU": 12.5, "chrF2": 30.0}, "test greedy": {"BLEU": 11.0, "chrF2": 29.0}}
    lines = [
        {"system": "a@1", "error": "no memory", **facts},
        {"system": "a@1", "scores": scores, **facts},
        {"system": "a@1", "error": "stopped", **facts},
        {"system": "a@2", "scores": {**scores, "test": {"BLEU": 13.5, "chrF2": 31.0}}, **facts},
        {"system": "b@1", "error": "too wide", **facts},
    ]
    file = tmp_path / "results.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    table = comparisons.table(comparisons.read_results(file))
    assert "| 8.6M | 12.50, 13.50 | 30.00, 31.00 |" in table
    assert "| 8.6M | 11.00, 11.00 | 29.00, 29.00 |" in table
    assert "b@1: too wide" in table and "stopped" not in table


SWEEPS = [("families", "SYSTEMS"), ("ladder", "LADDER"), ("single_choices", "CHOICES")]


@pytest.mark.parametrize(("script", "table"), SWEEPS)
def test_every_system_of_a_sweep_is_within_the_budget(script: str, table: str, tmp_path: Path) -> None:
    families, systems = importlib.import_module("families"), getattr(importlib.import_module(script), table)
    options = families.parser().parse_args([str(tmp_path), "--out", str(tmp_path)])
    for name in systems:
        assert families.within_budget(families.plan(name, "a,b", {}, options, systems=systems)), name


TINY = (
    "data.vocabulary=60",
    "data.tokenizer=words",
    "model.dim=16",
    "model.heads=2",
    "train.batch_tokens=128",
    "train.device=cpu",
)


def rung_names() -> list[str]:
    return [f"{name}-{rung}" for name, most in (("rnn", 5), ("cnn", 3)) for rung in range(most + 1)] + [
        "rnn-plain",
        "transformer",
    ]


@pytest.mark.parametrize("name", [*rung_names(), "transformer-2017"])
def test_every_rung_of_the_ladder_takes_two_steps(name: str, tmp_path: Path) -> None:
    families, ladder = importlib.import_module("families"), importlib.import_module("ladder").LADDER
    assert {*rung_names(), "transformer-2017"} == set(ladder)
    options = families.parser().parse_args([str(tmp_path), "--out", str(tmp_path), "--steps-scale", "0.0006"])
    options.set = [*TINY, "train.threads=1", "train.precision=float32", "train.save_every=2"]
    run = families.plan(name, tiny.generated("reverse", 60), {}, options, systems=ladder)
    result = weft.train(run.recipe, data=run.data, out=tmp_path / "run", set=list(run.sets))
    assert result.update == 2


def test_the_rungs_add_one_part_each() -> None:
    """Each rung differs from the one below in one setting, and the last one is the recipe without changes."""
    ladder = importlib.import_module("ladder").LADDER

    def settings(name: str) -> dict[str, Any]:
        return load_config(ladder[name].recipe, ladder[name].sets).model_dump()["model"]

    for name, most in (("rnn", 5), ("cnn", 3)):
        models = [settings(f"{name}-{rung}") for rung in range(most + 1)]
        changed = [{key for key in one if one[key] != other[key]} for one, other in pairwise(models)]
        assert all(len(each) == 1 for each in changed) and len(set.union(*changed)) == most
        whole = load_config(f"mixed-{name}").model_dump()["model"]
        assert {key for key in whole if whole[key] != models[-1][key]} <= {"position"}


def test_contrastive_pairs_are_found_in_tagged_and_in_plain_text(tmp_path: Path) -> None:
    contrastive = importlib.import_module("contrastive")
    tagged = (
        "The DT|keys NNS|to IN|the DT|old JJ|cabinet NN|often RB|are VBP|here RB|. .||A DT|dog NN|barks VBZ||He PRP|goes VBZ"
    )
    lines = tagged.replace(" ", "\t").split("|")
    found = [contrastive.contrast(each, "attractors") for each in contrastive.sentences(lines, {})]
    assert found[0] == contrastive.Contrast("The keys to the old cabinet often", "are", "is", "1 attractors")
    assert found[1] == contrastive.Contrast("A dog", "barks", "bark", "0 attractors") and found[2] is None
    (tmp_path / "tagged.tsv").write_text("".join(f"{line}\n" for line in lines))
    lexicon = contrastive.most_frequent_tags(tmp_path / "tagged.tsv")
    (plain,) = contrastive.sentences(["the dog to the keys barks ."], lexicon)
    assert contrastive.contrast(plain, "distance") == contrastive.Contrast("the dog to the keys", "barks", "bark", "3 words")
    (brown,) = contrastive.sentences(["the/at jury/nn says/vbz"], {})
    assert contrastive.contrast(brown, "attractors").wrong == "say"
    (wrong,) = contrastive.sentences(["the/at jury/nn say/vb"], {})
    assert contrastive.contrast(wrong, "attractors") is None, "it does not agree"
    for singular, plural in (
        ("goes", "go"),
        ("tries", "try"),
        ("says", "say"),
        ("passes", "pass"),
        ("makes", "make"),
        ("has", "have"),
    ):
        assert contrastive.other_number(singular) == plural and contrastive.other_number(plural) == singular


def test_a_word_with_two_translations_is_found_and_a_synonym_is_not() -> None:
    contrastive = importlib.import_module("contrastive")
    pairs = [("near the bank fish swim", "nahe dem Ufer schwimmen Fische"), ("the bank lends money", "die Bank verleiht Geld")]
    pairs += [("children play games today", "Kinder spielen heute"), ("children play games today", "Knirpse spielen heute")]
    others = [("fish swim near here", "nahe schwimmen Fische"), ("someone lends money", "jemand verleiht Geld")]
    known = contrastive.translations(pairs * 10 + others * 20)
    assert known["bank"] == [("Bank", "Ufer"), ("Ufer", "Bank")] and "children" not in known
    (found,) = contrastive.ambiguous([("a bank .", "das Ufer .")], known)
    assert (found.right, found.wrong, found.group) == ("das Ufer .", "das Bank .", "up to 10 words")


def test_agreement_is_tested_with_phrases_that_training_never_sees(tmp_path: Path) -> None:
    agreement = importlib.import_module("agreement")
    tests = agreement.write_tests(tmp_path)
    for name, file in tests.items():
        contrasts = read_contrasts(Path(file).read_text().splitlines(), name)
        assert not {each.source for each in contrasts} & {source for source, _ in open_pairs(agreement.TRAIN)}
        assert all({each.right, each.wrong} == {"is", "are"} for each in contrasts)
    options = agreement.parser().parse_args(["--out", str(tmp_path)])
    for name in agreement.SYSTEMS:
        config = agreement.plan(name, 1, tests, options).config()
        assert config.data.train == [agreement.TRAIN] and config.train.seed == 1


def test_small_systems_differ_in_one_thing_and_their_data_is_nested(tmp_path: Path) -> None:
    small, trainings = importlib.import_module("small_pairs"), importlib.import_module("trainings")
    lines = [f"{'w ' * (number % 12 + 1)}{number}\tt {number}\n" for number in range(9000)]
    train, test = tmp_path / "train.tsv", tmp_path / "test.tsv"
    train.write_text("".join(lines))
    test.write_text("".join(lines[:600]))
    sizes, tests, _ = small.write_data(str(train), str(test), tmp_path / "out")
    few, some, many = (set(open_pairs(sizes[count])) for count in small.SIZES)
    assert few < some < many and [len(few), len(some), len(many)] == [*small.SIZES]
    whole, short, longer, joined = ([*open_pairs(tests[name])] for name in ("all", "short", "long", "joined"))
    assert sorted(short + longer) == sorted(whole) and len(whole) == small.TESTED
    assert max(len(source.split()) for source, _ in short) == small.SHORT
    words = Counter(word for source, _ in joined for word in source.split() if word != "w")
    assert set(words.values()) == {1} and len(words) == small.TESTED // small.TOGETHER * small.TOGETHER
    options = argparse.Namespace(out=tmp_path, steps_scale=1.0, set=[])
    configs = {name: small.plan(name, 2, sizes, tests, options).config() for name in small.SYSTEMS}
    assert len({(each.train.steps, each.train.batch_tokens, each.train.seed) for each in configs.values()}) == 1
    counts = [trainings.count_parameters(configs[name], Sizes(2000, 2000, shared=True)) for name in ("rotary", "rnn-8000")]
    assert max(counts) < 1.1 * min(counts)


@pytest.mark.parametrize("kind", ["dropped", "swapped", "typos"])
def test_more_noise_includes_less(kind: str) -> None:
    small = importlib.import_module("small_pairs")
    texts = [f"every{number} sentence{number} again{number} with{number} words{number}" for number in range(200)]
    assert small.with_noise(kind, 0, texts) == texts
    few, many = (small.with_noise(kind, share, texts) for share in (5, 20))
    assert few == small.with_noise(kind, 5, texts)
    if kind == "swapped":
        changed = [
            sum(old != new for old, new in zip(a.split(), b.split(), strict=True)) for a, b in zip(texts, many, strict=True)
        ]
        assert 200 < sum(changed) < 400  # a fifth of all words goes past the next one, and the last has no next one
        return
    lost = [{*text.split()} - {*noisy.split()} for some in (few, many) for text, noisy in zip(texts, some, strict=True)]
    assert all(less <= more for less, more in zip(lost[:200], lost[200:], strict=True))
    assert 20 < sum(map(len, lost[:200])) < 80 < 150 < sum(map(len, lost[200:])) < 250


@pytest.mark.parametrize("script", ["labels", "tagging"])
def test_every_system_of_labels_and_tags_has_a_valid_configuration(script: str) -> None:
    for name, (_, recipe, sets) in importlib.import_module(script).SYSTEMS.items():
        assert load_config(recipe, sets).task["kind"] in ("classification", "tagging"), name
    alone = load_config("classifier", importlib.import_module("labels").SYSTEMS["sst2-alone"][2])
    assert alone.model["encoder"]["feedforward"] == 0 and not alone.model["encoder"]["residual"]


def test_small_parts_are_about_as_large_as_their_control(tmp_path: Path) -> None:
    parts, trainings = importlib.import_module("small_parts"), importlib.import_module("trainings")
    files, options = (Path("a"), Path("b")), argparse.Namespace(out=tmp_path, set=[], steps_scale=1.0)
    sizes = dict.fromkeys(("pairs", "text"), files)
    controls: dict[tuple[str, str], int] = {}
    for name, system in parts.SYSTEMS.items():
        vocabulary = 3000 if system.group[0] == "pairs" else 70
        config = parts.plan(name, 1, sizes, options).config()
        count = trainings.count_parameters(config, Sizes(vocabulary, vocabulary, shared=True))
        assert 0.7 < count / controls.setdefault(system.group, count) < 1.3, name


def test_pairs_of_small_parts_are_short(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one two\tun deux\n1 2 3 4 5 6 7\tun\nsix\tun deux trois quatre cinq six sept\nend\tfin\n")
    assert importlib.import_module("small_parts").short(tmp_path / "a.tsv", 2) == ["one two\tun deux", "end\tfin"]


def test_questions_with_a_blank_are_answered_by_counting() -> None:
    reading = importlib.import_module("reading")
    known = ["the cat sat on the mat", "the dog ran"] * 20
    row = {"passage": "mat mat cat dog dog dog", "question": "the cat sat on the @blank", "candidates": ["cat", "dog", "mat"]}
    found = reading.counted_choices([row], reading.Ngrams(known))
    assert found == {"most frequent candidate": ["dog"], "n-gram model": ["mat"], "both": ["mat"]}


def test_every_span_has_the_same_number_of_parameters(tmp_path: Path) -> None:
    spans, trainings = importlib.import_module("spans"), importlib.import_module("trainings")
    plans = [spans.plan(name, 1, ("train.txt", "valid.txt"), tmp_path, 1.0, []) for name in spans.SYSTEMS]
    counts = [trainings.count_parameters(plan.config(), Sizes(8000, 8000, shared=True)) for plan in plans]
    assert max(counts) < 1.01 * min(counts)


def test_blocks_of_a_text_are_held_out(tmp_path: Path) -> None:
    spans = importlib.import_module("spans")
    (tmp_path / "text").write_text("".join(f"{number}\n" for number in range(spans.BLOCK * (spans.HELD + 1))))
    train, valid = (Path(file).read_text().split() for file in spans.split(tmp_path / "text", tmp_path))
    assert valid == [str(spans.BLOCK * (spans.HELD - 1) + place) for place in range(spans.BLOCK)]
    assert len(train) == spans.BLOCK * spans.HELD and not set(train) & set(valid)


def test_consecutive_sentences_are_joined(tmp_path: Path) -> None:
    lengths = importlib.import_module("lengths")
    for side, text in (("en", "a\nb\nc\n"), ("de", "A\nB\nC\n")):
        (tmp_path / f"train.{side}").write_text(text)
    source, target = lengths.join(tmp_path, "train", (1, 2), tmp_path / "out").split(",")
    assert Path(source).read_text() == "a\nb\nc\na b\n"
    assert Path(target).read_text() == "A\nB\nC\nA B\n"


def test_performers_error_falls_with_its_features_for_short_queries_only() -> None:
    performer = importlib.import_module("performer")
    short, long = ([performer.error(m, norm, tokens=64, draws=6) for m in (32, 512)] for norm in (0.5, 4.0))
    assert 3 < short[0] / short[1] < 5.3, "sixteen times the features, a quarter of the error"
    assert long[0] / long[1] < 2


def test_phoneme_errors_are_edit_distances() -> None:
    monotonic = importlib.import_module("monotonic")
    assert monotonic.distance("cat", "cats") == 1
    assert monotonic.distance("act", "cat") == 2
    assert monotonic.distance("", "cat") == 3
    assert monotonic.errors(["K AE T", ""], ["K AH T", "D"]) == pytest.approx(50)


def test_no_test_word_is_in_training(tmp_path: Path) -> None:
    monotonic = importlib.import_module("monotonic")
    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "ijklmnop" for c in ("q", "rstuvwx", "yzyzyzyzyzyz")]
    (tmp_path / "words.tsv").write_text("".join(f"{' '.join(word)}\t{' '.join(word.upper())}\n" for word in words))
    files = monotonic.split(tmp_path / "words.tsv", tmp_path)
    sources = {name: {line.split("\t")[0] for line in Path(file).read_text().splitlines()} for name, file in files.items()}
    assert not sources["train"] & (sources["words"] | sources["apart"])
    assert max(len(source.split()) for source in sources["train"]) <= 10
    assert all(24 <= len(source.split()) <= 30 for source in sources["joined"])


def test_the_page_has_a_mark_for_every_drawing_and_no_other() -> None:
    mechanisms = importlib.import_module("mechanisms")
    page = (FOLDER.parent / "docs" / "mechanisms.md").read_text("utf-8")
    assert {match[2] for match in mechanisms.MARK.finditer(page)} == {*mechanisms.RUNS, mechanisms.MIX}
    assert set(mechanisms.RUNS.values()) | {mechanisms.MIX_RUN} <= set(importlib.import_module("families").SYSTEMS)


def test_every_mechanism_has_an_entry_on_the_page() -> None:
    page = (FOLDER.parent / "docs" / "mechanisms.md").read_text("utf-8")
    headings = {word for line in page.splitlines() if line.startswith("### ") for word in line[4:].split(", ")}
    assert not (ATTENTIONS.keys() | MIXERS.keys()) - headings
    pooling = page.partition("### Pooling")[2].partition("\n#")[0]
    assert not [kind for kind in POOLINGS if f"`{kind}`" not in pooling]


def test_existing_pictures_are_linked(tmp_path: Path) -> None:
    mechanisms = importlib.import_module("mechanisms")
    page, pictures = tmp_path / "mechanisms.md", tmp_path / "images"
    page.write_text("<!-- drawing: dot -->\n![old](gone.png)\n\n<!-- drawing: hard -->\n![old](gone.png)\n\nend\n")
    mechanisms.draw("wiring", {"weights": [[0.25, 0.75], [1.0, 0.0]]}, pictures / "hard.png")
    for _ in range(2):
        mechanisms.link(page, pictures)
        assert page.read_text() == (
            "<!-- drawing: dot -->\n\n<!-- drawing: hard -->\n![weights of hard on one sentence](images/hard.png)\n\nend\n"
        )


def test_every_mechanism_of_the_zoo_fits_its_slot() -> None:
    zoo = importlib.import_module("zoo")
    for name, part in zoo.PARTS.items():
        for kind in part.kinds:
            spec = json.dumps({"kind": kind, **part.options.get(kind, {})})
            config = load_config(part.recipe, [*part.sets, f"{part.slot}={spec}"])
            with torch.device("meta"):
                model = build_model(config.model, Sizes(50, 50, True))
            limits = [limit for limit in (model.max_source, model.max_target) if limit is not None]
            assert config.data.max_length < min(limits, default=1 << 20), (name, kind)


def test_the_zoo_compares_its_order_with_published_scores() -> None:
    zoo = importlib.import_module("zoo_report")
    assert zoo.correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert zoo.correlation([4, 3, 2, 1], [10, 20, 30, 40]) == pytest.approx(-1)
    assert zoo.correlation([1, 1, 1], [1, 2, 3]) == 0
    rows = [
        {"label": label, "quality": {"mean": value, "values": [value]}, "speed": {"mean": 1e4}, "memory": None, "steps": None}
        for label, value in (("bigbird window=2", 3.0), ("fnet", 2.5), ("full", 2.0), ("local", 1.0))
    ]
    rows[0]["rank"] = [1, 2]
    headline = {"title": "accuracy", "higher_is_better": True}
    failed = {"label": "failed", "quality": None, "error": "unfinished"}
    results = {"headline": headline, "counts": "texts", "entries": [*rows, failed], "floors": {"chance": 2.2}}
    lines = zoo.ranking(results).splitlines()
    assert lines[2] == "| bigbird window=2 | 1–2 | 3.00 | 10,000 | – | – | 55.01 |"
    # A floor stands among the entries, by its score.
    assert lines[3:5] == ["| fnet | – | 2.50 | 10,000 | – | – | – |", "| *floor: chance* |  | 2.20 |  |  |  |  |"]
    text = "\n".join(lines)
    assert "+1.00 with the Arena's average (3 entries)" in text and "failed: unfinished" in text
    assert "| local | – | 1.00 | 10,000 | – | – | 15.82 | 46.06 |" in zoo.ranking(results, arena_task="ListOps")
    headline["higher_is_better"] = False
    assert "floor" in zoo.ranking(results).splitlines()[4]


def test_the_zoo_joins_the_results_of_several_calls() -> None:
    zoo = importlib.import_module("zoo_report")

    def part(**scores: float) -> dict[str, Any]:
        def row(label: str, score: float) -> dict[str, Any]:
            stat = {"mean": score, "low": None, "high": None, "values": [score]}
            unmeasured = dict.fromkeys(("speed", "memory", "seconds"))
            quality = {"quality": stat if score else None, "steps": stat, "error": "" if score else "stopped"}
            return {"label": label, "runs": [score], **unmeasured, **quality}

        return {"headline": {"higher_is_better": True}, "entries": [row(*each) for each in scores.items()]}

    entries = zoo.join([part(full=3, local=2, fnet=0), part(local=6, full=4, fnet=1)])["entries"]
    assert [row["rank"] for row in entries] == [[1, 3]] * 3  # seeds differ by up to 4, so nothing can be told apart
    assert [(row["label"], row["quality"]["values"], row["runs"], row["error"]) for row in entries] == [
        ("local", [2, 6], [2, 6], ""),
        ("full", [3, 4], [3, 4], ""),
        ("fnet", [1], [0, 1], ""),
    ]


def test_no_pattern_of_the_zoo_equals_full_attention() -> None:
    """In a sentence of the part's length, a pattern that sees everything would be full attention under another name."""
    zoo = importlib.import_module("zoo")
    for part, length in ((zoo.PARTS["b"], 50), (zoo.PARTS["c"], 16)):
        for kind in set(part.kinds) & set(PATTERNS) - {"full"}:
            pattern = build(
                "weft.attention.core.sparsity_patterns:PATTERNS", {"kind": kind, **part.options.get(kind, {})}, False
            )
            assert not pattern.sees(length, causal=False).all(), kind


def test_the_zoo_starts_with_the_most_important_runs(tmp_path: Path) -> None:
    zoo = importlib.import_module("zoo")
    options = zoo.parser().parse_args(["--out", str(tmp_path), "--only", "full,fnet,local", "--parts", "a,c", "--repeat", "2"])
    sweeps = zoo.plan(options)
    assert sweeps["c"].comparison.entries[1].sets == ('model.encoder_self={"kind": "local", "window": 3}',)
    queue = [(name, run.entry.label.split()[0], run.number) for name, run in zoo.Zoo(tmp_path, sweeps, 2).queue()]
    first = [("a", "full"), ("a", "local"), ("a", "fnet"), ("c", "full"), ("c", "local"), ("c", "fnet")]
    assert [pair[:2] for pair in queue[:6]] == first and queue[6:8] == [("c", "full", 1), ("c", "local", 1)]
    assert {number for *_, number in queue[:6]} == {0} and {number for *_, number in queue[6:]} == {1}


def test_the_spread_between_seeds_is_pooled_over_entries() -> None:
    zoo = importlib.import_module("zoo_report")
    stats = [{"mean": mean, "values": [mean - off, mean + off]} for mean, off in ((5.0, 1.0), (7.0, 2.0), (9.0, 2.0))]
    single = {"mean": 4.0, "values": [4.0]}
    # Variances of 2, 8 and 8, with one degree of freedom each.
    assert zoo.pool([*stats, single]) == pytest.approx(6**0.5)
    half = 3.182 * 3**0.5
    assert [(each["low"], each["high"]) for each in stats] == [pytest.approx((m - half, m + half)) for m in (5.0, 7.0, 9.0)]
    assert single["high"] - single["low"] == pytest.approx(2 * half * 2**0.5)
    assert zoo.pool([{"mean": 4.0, "values": [4.0]}]) is None


def test_floors_of_labelled_texts(tmp_path: Path) -> None:
    """A linear model finds what depends on letters or words; counting finds what depends on the first operator."""
    floors = importlib.import_module("floors")
    words = {"sport": "team win score", "money": "bank loan rate"}
    known = [(f"{word} and x{number}", label) for label, some in words.items() for word in some.split() for number in range(4)]
    files = [tmp_path / "train.tsv", tmp_path / "valid.tsv"]
    files[0].write_text("".join(f"{text}\t{label}\n" for text, label in [*known, ("and", "sport")]))
    files[1].write_text("the team and me\tsport\na loan\tmoney\nrate and rate\tmoney\n")
    found = floors.topics(*map(str, files))
    assert found["most frequent label"] == pytest.approx(100 / 3)
    assert found["TF-IDF of words and pairs of words, linear model"] == 100
    files[0].write_text("[MAX 1 ]\t1\n[MAX 1 ]\t1\n[MIN 2 ]\t2\n[MIN 3 ]\t2\n[MIN 3 ]\t2\n")
    files[1].write_text("[MAX 7 ]\t1\n[MIN 7 ]\t2\n[MIN 7 ]\t3\n[SM 1 ]\t1\n")
    assert list(floors.listops(*map(str, files)).values()) == [25, 50]


def test_ngram_models_are_distributions_and_reach_the_entropy() -> None:
    """Kneser–Ney by a loop over one context: the probabilities of all tokens sum to 1, at every order."""
    ngrams = importlib.import_module("ngrams")
    rng = np.random.default_rng(0)
    train = rng.integers(0, 4, 200)
    for context in ([0, 1], [3, 3]):
        before = ngrams.ngram_losses(train, context, 4, 3)
        after = [ngrams.ngram_losses(train, [*context, token], 4, 3) for token in range(4)]
        for order in range(3):
            assert sum(np.exp(2 * before[order] - 3 * each[order]) for each in after) == pytest.approx(1)
    # After 0 comes 1, after 1 comes 2, after 2 comes 0 or 1: a pair of tokens leaves ln 2 in one of three places, roughly.
    chain = [0]
    for choice in rng.integers(0, 2, 6000):
        chain.append([1, 2, int(choice)][chain[-1]])
    single, pair, triple = ngrams.ngram_losses(chain[:5000], chain[5000:], 3, 3)
    share = chain[5000:-1].count(2) / 1000
    assert single > 1.05 and pair == pytest.approx(share * np.log(2), abs=0.02) and triple == pytest.approx(pair, abs=0.01)


def test_a_floor_of_bigrams_equals_its_formula() -> None:
    """Chen & Goodman 1999, equations 20 to 26, by plain loops over one training text, for orders 1 and 2."""
    ngrams = importlib.import_module("ngrams")
    text, asked, size = "abracadabra abba cab dab a".replace(" ", "_"), "cabbadac", 6
    ids = {letter: number for number, letter in enumerate("abcdr_")}

    def discounts(counts: Any) -> list[float]:
        n = [sum(count == times for count in counts) or 1 for times in range(5)]
        y = n[1] / (n[1] + 2 * n[2])
        return [0, *(max(LEAST, k - (k + 1) * y * n[k + 1] / n[k]) for k in (1, 2, 3))]

    def smoothed(counts: dict[str, int], letter: str, lower: float) -> float:
        total, d = sum(counts.values()), discounts_of
        if not total:
            return lower
        taken = {each: min(d[min(count, 3)], count) for each, count in counts.items()}
        return (counts.get(letter, 0) - taken.get(letter, 0)) / total + sum(taken.values()) / total * lower

    pairs = Counter(pairwise(text))
    before = Counter(right for _, right in pairs)
    logs = []
    for left, right in zip(text[-1] + asked, asked, strict=False):
        discounts_of = discounts(before.values())
        lower = smoothed(before, right, 1 / size)
        discounts_of = discounts(pairs.values())
        logs.append(np.log(smoothed({w: count for (v, w), count in pairs.items() if v == left}, right, lower)))
    found = ngrams.ngram_losses([ids[each] for each in text], [ids[each] for each in asked], size, 2)
    assert found[1] == pytest.approx(-np.mean(logs))


def test_the_brown_corpus_is_split_by_words_and_rare_words_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brown = importlib.import_module("brown")
    monkeypatch.setattr(brown, "SIZES", {"train": 10, "valid": 3})
    (tmp_path / "brown.txt").write_text("a b a b\na a b b\nc a b\na c b\nb z a\n\na a\n")
    words = brown.split(tmp_path / "brown.txt", tmp_path)
    assert {name: " ".join(each) for name, each in words.items()} == {
        "train": "a b a b \n a a b b \n c a b \n",
        "valid": "a c b \n",
        "test": "b z a \n a a \n",
    }
    assert (tmp_path / "test.txt").read_text() == "b z a\na a\n"
    parts, size = brown.number_words(words)  # a and b occur four times; c and the line end do not
    assert size == 3 and parts["valid"] == [1, 0, 2, 0]
    rows = brown.floors({"train": parts["train"] * 9, **{name: parts[name] for name in ("valid", "test")}}, size)
    assert len(rows) == brown.ORDER and all(1 < row.test < 100 for row in rows)


def test_post_norm_scores_are_compared_seed_by_seed() -> None:
    postnorm = importlib.import_module("postnorm")
    fused, plain = ({seed: {"bleu": bleu, "loss": 1.0} for seed, bleu in enumerate(each)} for each in ([40, 41], [39, 40.5]))
    text = postnorm.table({"fused": fused, "plain": plain})
    assert "| fused | 0, 1 | 40.50 ± 0.71 (40.00, 41.00) |" in text
    assert "| fused − plain | 0, 1 | 0.75 [-2.43, 3.93] | 0.0000 [0.0000, 0.0000] |" in text


@pytest.mark.parametrize("system", ["adapters", "adapters-linear"])
def test_adapters_for_another_domain_have_at_most_three_percent_of_the_parameters(system: str) -> None:
    domains = importlib.import_module("domains")
    config = load_config(domains.RECIPE, domains.SYSTEMS[system][1])
    with torch.device("meta"):
        model = build_model(config.model, Sizes(config.data.vocabulary, config.data.vocabulary, shared=True))
        whole = model.count_parameters()
        add_adapters(model, Lora(**config.model["lora"]))
    assert 0.025 < (model.count_parameters() - whole) / whole <= 0.03


@pytest.mark.parametrize("labels", [0, 500])
def test_word_vectors_are_compared_with_the_same_model_from_nothing(labels: int) -> None:
    ulmfit = importlib.import_module("ulmfit")
    options = argparse.Namespace(steps_scale=1.0, vectors={"general": "general.vec", "reviews": "reviews.vec"})
    nothing, *others = (load_config("classifier-bytes", sets) for sets in ulmfit.with_vectors(options, labels).values())
    assert [each.start.vectors for each in (nothing, *others)] == [None, "general.vec", "reviews.vec"]
    for each in others:
        assert each.train.steps == nothing.train.steps and (each.model, each.task) == (nothing.model, nothing.task)
        assert (each.data, each.train.batch_tokens) == (nothing.data, nothing.train.batch_tokens)


def test_controls_of_rewards_differ_in_one_setting(tmp_path: Path) -> None:
    rewards = importlib.import_module("rewards")
    options = argparse.Namespace(folder=tmp_path, out=tmp_path, common=(), set=[], steps_scale=1.0)

    def settings(system: str) -> dict[str, Any]:
        config = load_config(rewards.RECIPE, rewards.plan(options, 1, system).sets).model_dump()
        return {f"{part}.{key}": value for part, some in config.items() for key, value in some.items()}

    def different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
        return {key for key in one if one[key] != other[key]}

    reward, constant = (settings(name)["task.reward"] for name in ("reinforce-no-baseline", "constant"))
    assert different(settings("reinforce-no-baseline"), settings("constant")) == {"task.reward"}
    assert different(reward | {"metric": None}, constant) == {"metric"}
    changed = different(settings("cross-entropy"), settings(rewards.CONTROL))
    assert changed and all(key.endswith("dropout") for key in changed)


def test_languages_alone_and_together_differ_in_data_and_steps_only(tmp_path: Path) -> None:
    corpora = importlib.import_module("corpora")
    for part in ("train", "val", "test_2016_flickr"):
        for language in ("en", "de", "fr"):
            (tmp_path / f"{part}.{language}").write_text("a line\n" * 8)
    found = corpora.systems(tmp_path, tmp_path)["multilingual"]
    for dropout in corpora.DROPOUTS:
        chosen = [found[f"{name} dropout {dropout}"][1] for name in ("en-de alone", "en-fr alone", "en-de+fr")]
        one, other, both = (dict(each.split("=", 1) for each in sets) for sets in chosen)
        assert one == other
        assert {key for key in one.keys() | both.keys() if one.get(key) != both.get(key)} == {"train.steps"}
        assert int(both["train.steps"]) == 2 * int(one["train.steps"])


def test_golden_numbers_are_those_of_another_call_and_every_difference_is_found(tmp_path: Path) -> None:
    golden, runs, cases = (importlib.import_module(name) for name in ("golden", "golden_runs", "golden_cases"))
    case = cases.GROUPS["language models"]()["lm-tiny"]
    case = replace(case, settings={**case.settings, "train.steps": 4, "train.save_every": 2, "train.validate_every": 0})
    before = {"lm-tiny": runs.Golden(tmp_path / "before", None).measure("lm-tiny", case)}
    after = {"lm-tiny": runs.Golden(tmp_path / "after", tmp_path / "before").measure("lm-tiny", case)}
    differing, count = golden.compare(before, after)
    assert not differing and not golden.unsound(after) and count > 100
    assert {"weights", "log", "resumed", "scores", "search: beam", "before: resumed"} <= after["lm-tiny"].keys()
    after["lm-tiny"]["log"][2]["loss"] += 1e-12
    del after["lm-tiny"]["scores"]
    assert {*golden.compare(before, after)[0]} == {"lm-tiny · log", "lm-tiny · scores"}
    assert golden.unsound(after) == ["lm-tiny: resumed log differs from the whole run"]


def test_labels_of_a_caption_are_words_of_the_others_and_groups_are_ranked_by_themselves() -> None:
    few = importlib.import_module("few_shot_labels")
    found = list(few.labelled(("p", ["A red dog runs.", "a red dog", "The dog barks"]), {"a", "the"}))
    assert [labels for *_, labels in found] == [["dog"], ["dog"], ["dog", "red"]]
    ranked, test = [["a", "b", "c", "d", "e", "f", "g"]] * 2, [("p", "", ["g", "a"]), ("p", "", ["f"])]
    assert few.recall(ranked, test, set("abcdefg")) == pytest.approx(25)  # of the best five a, but neither g nor f
    assert few.recall(ranked, test, set("cdefg")) == pytest.approx(100)
