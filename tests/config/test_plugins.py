"""Parts of installed packages: found by name, built, listed and saved like those of weft; nothing else is ever imported."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft
from tests.helpers import tiny
from tests.helpers.translation_task import make_task
from weft.attention.base import Attention, Site
from weft.config.plugins import installed_parts, installed_recipes
from weft.config.registry import build, find_table
from weft.config.sections import DecodeSection, load_config, recipes
from weft.data.formats import open_pairs
from weft.errors import ConfigError, RunError, WeftError
from weft.evaluation.metrics import make_metrics, score
from weft.models.base import Sizes
from weft.models.encoder_decoder import build_model
from weft.serve.json_api import explain_text
from weft.serve.served_model import ModelLocation
from weft.serve.served_models import Models

CODE = """
from weft.attention.full import FullAttention

class GentleAttention(FullAttention):
    \"\"\"Full attention from elsewhere.\"\"\"
"""

Install = Callable[..., Path]


def forget() -> None:
    """Looks for installed packages again."""
    installed_parts.cache_clear()
    installed_recipes.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package of one module, as pip would lay it out."""

    def put(package: str, entries: dict[str, str], code: str = CODE) -> Path:
        about = tmp_path / "site" / f"{package}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[weft.parts]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()))
        (tmp_path / "site" / f"{package}.py").write_text(code)
        forget()
        return tmp_path / "site"

    monkeypatch.syspath_prepend(tmp_path / "site")
    yield put
    forget()
    for name in [name for name in sys.modules if name.startswith("parts_of_")]:
        del sys.modules[name]


def test_an_installed_attention_is_built_by_name(install: Install) -> None:
    install("parts_of_ann", {"attention.gentle": "parts_of_ann:GentleAttention"})
    part = build("weft.attention:ATTENTIONS", "gentle", Site("cross", 16, 4))
    assert isinstance(part, Attention) and type(part).__module__ == "parts_of_ann"
    assert "gentle" in find_table("weft.attention.mixers:SELF") and "gentle" in find_table("weft.attention:CROSS")
    assert "gentle" not in find_table("weft.models:POOLINGS")
    layers = weft.nn.Attention("gentle", 16), weft.nn.SelfAttention("gentle", 16)
    assert all("GentleAttention" in repr(layer) for layer in layers)


def test_members_of_installed_parts_may_have_their_old_names() -> None:
    with pytest.warns(DeprecationWarning, match=r"OldAttention: (packs|start) is called (supports_packing|init_state) now"):

        class OldAttention(Attention):
            packs = True

            def start(self, *inputs: object, **options: object) -> str:
                return "started"

    assert OldAttention.supports_packing and OldAttention.init_state is OldAttention.start


def test_an_installed_reward_scores_texts(install: Install) -> None:
    code = (
        "class Short:\n    def __call__(self, texts, references, sources):\n        return [1 / len(text) for text in texts]\n"
    )
    install("parts_of_ann", {"reward.short": "parts_of_ann:Short"}, code)
    rewarding = make_task(reward={"kind": "reinforce", "metric": "short"}).rewarding
    assert rewarding is not None and list(rewarding.reward(["ab", "abcd"], ["x", "x"], ["y", "y"])) == [0.5, 0.25]


def test_a_run_saves_an_installed_part_by_name_and_needs_it_again(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install("parts_of_ann", {"attention.gentle": "parts_of_ann:GentleAttention"})
    short = {"train.steps": 2, "train.save_every": 2, "model.encoder_self": "gentle"}
    tiny.train(tmp_path / "run", settings=short)
    assert load_config(tmp_path / "run" / "config.yaml").model["encoder_self"]["kind"] == "gentle"
    assert weft.load(tmp_path / "run", device="cpu").translate("a b").text is not None
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    forget()
    with pytest.raises(RunError, match="trained with parts of the package parts_of_ann, not installed here"):
        weft.load(tmp_path / "run", device="cpu")
    (tmp_path / "run" / "run.json").unlink()  # as in older runs
    with pytest.raises(WeftError, match=r"encoder_self.*there is no 'gentle'"):
        weft.load(tmp_path / "run", device="cpu")


def test_installed_parts_are_listed_with_their_package(
    install: Install, weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    install("parts_of_ann", {"attention.gentle": "parts_of_ann:GentleAttention", "front.kind": "parts_of_ann:GentleAttention"})
    install("parts_of_bob", {"attention.broken": "no_such_module:Part", "search.broken": "parts_of_bob:Missing"})
    attentions = weft("list", "attentions")
    assert re.search(r"gentle .*encoder causal cross.* package parts_of_ann", attentions)
    assert re.search(r"broken .* of the package parts_of_bob cannot be imported: No module", attentions)
    assert " full.py" in attentions and "weft/attention" in attentions
    assert re.search(r"kind .*Full attention from elsewhere\. .*package parts_of_ann", weft("list", "fronts"))
    everything = weft("list")
    assert "has no attribute 'Missing'" in everything and "tokenizers" in everything


SEARCH = """
from weft.decoding.search_methods import Search
from weft.decoding.hypotheses import Hypothesis

class FirstToken(Search):
    \"\"\"Writes one token, whatever the source is.\"\"\"
    kind = "first"
    accepts = frozenset()

    def width(self, n_best):
        return 1

    def find(self, decoder, source, request):
        return [[Hypothesis(-1.0, [4, 2])] for _ in range(request.prefix.size(0))], None
"""


def test_an_installed_search_need_not_write_one_token_after_the_other(install: Install, reverse_run: Path) -> None:
    install("parts_of_ann", {"search.first": "parts_of_ann:FirstToken"}, SEARCH)
    translator = weft.load(reverse_run, device="cpu")
    found = translator.translate(["a b c", "d"], search="first")
    assert [each.ids for each in found] == [[4, 2]] * 2
    with pytest.raises(ConfigError, match="first does not support a forced prefix"):
        translator.translate("a b", prefix="x", search="first")


@pytest.mark.parametrize("kind", ["os:system", "evil", "evil:Part", "weft.attention.full:FullAttention"])
def test_a_run_folder_cannot_make_weft_import_anything(
    kind: str, reverse_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for file in reverse_run.iterdir():
        if file.is_file():
            (run / file.name).write_bytes(file.read_bytes())
    (run / "evil.py").write_text("raise SystemExit('imported')\n")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("kind: full", f"kind: '{kind}'", 1))
    monkeypatch.chdir(run)
    with pytest.raises(WeftError, match="there is no"):
        weft.load(run, device="cpu")
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"attention.full": "parts_of_bob:GentleAttention"}, "parts_of_bob: its part 'attention.full' has the name of"),
        ({"gentle": "parts_of_bob:GentleAttention"}, r"parts_of_bob: .*'gentle' .* KIND\.NAME"),
        ({"attention.gentle": "parts_of_bob:Missing"}, "'gentle' of the package parts_of_bob cannot be imported"),
        ({"attention.gentle": "no_such_module:Part"}, "'gentle' of the package parts_of_bob cannot be imported"),
    ],
)
def test_a_bad_package_is_named(entries: dict[str, str], message: str, install: Install) -> None:
    install("parts_of_bob", entries)
    with pytest.raises(ConfigError, match=message):
        build("weft.attention:ATTENTIONS", "gentle", Site("cross", 16, 4))


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    for name in ("parts_of_ann", "parts_of_bob"):
        install(name, {"attention.gentle": f"{name}:GentleAttention"})
    with pytest.raises(ConfigError, match=r"parts_of_(ann and parts_of_bob|bob and parts_of_ann) both"):
        build("weft.attention:ATTENTIONS", "gentle", Site("cross", 16, 4))


OTHER_KINDS = """
from weft.decoding.ngram_blocking_and_rules import ForbidTokens, Rule
from weft.evaluation.metrics import ExactMatch
from weft.models.transformer import Transformer

class Small(Transformer):
    \"\"\"A Transformer from elsewhere.\"\"\"

class Shouted(ExactMatch):
    \"\"\"Equal but for case.\"\"\"
    name = "shouted"

    def count(self, hypotheses, references):
        return super().count([text.upper() for text in hypotheses], [text.upper() for text in references])

def twice(random, shortest, longest):
    \"\"\"A letter, twice.\"\"\"
    letter = random.choice("abcdefghij")
    return letter, letter, letter * 2

class Forbid(ForbidTokens):
    def __init__(self, rules, sources, content):
        super().__init__([token for source in content for token in source])

class Different(Rule):
    \"\"\"No token of any source.\"\"\"
    constraint = Forbid
"""


def test_models_rules_metrics_and_generators_of_packages(install: Install, reverse_run: Path) -> None:
    kinds = {"model.small": "Small", "metric.shouted": "Shouted", "generator.twice": "twice", "rule.different": "Different"}
    install("parts_of_ann", {name: f"parts_of_ann:{part}" for name, part in kinds.items()}, OTHER_KINDS)
    assert build_model({"kind": "small", "dim": 16}, Sizes(9, 9, shared=True)).dim == 16
    assert score(["AB"], ["ab"], make_metrics(["shouted"]))["shouted"].value == 100
    assert next(iter(open_pairs("generated:twice?count=1&split=test"))) in {(letter, letter * 2) for letter in "abcdefghij"}
    assert DecodeSection(rules=["different"]).rules == ["different"]
    text = weft.load(reverse_run, device="cpu").translate("a b c", rules=["different"]).text
    assert text and not set(text.split()) & set("abc")


TRAINING_KINDS = """
import torch
from torch.nn import functional as F
from weft.data.batch import PAD
from weft.data.tokenizers.word_character_byte import WordTokenizer
from weft.evaluation.metrics import ExactMatch

class Focal:
    \"\"\"Cross-entropy that counts probable tokens less (Lin et al. 2017).

    gamma: how much less
    \"\"\"
    def __init__(self, *, gamma: float = 2.0) -> None:
        self.gamma = gamma

    def __call__(self, logits, labels, smoothing):
        logp = logits.float().log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return -((1 - logp.exp()) ** self.gamma * logp)[labels != PAD].sum()

class Lowercase(WordTokenizer):
    \"\"\"Words in lower case.\"\"\"

def sgd(parameters, *, momentum: float = 0.9):
    \"\"\"Gradient descent.\"\"\"
    return torch.optim.SGD(list(parameters), lr=0.0, momentum=momentum)

def halving(plan, *, rate: float = 0.1):
    \"\"\"Half of the rate in the second half.\"\"\"
    return lambda update: rate if update <= plan.steps / 2 else rate / 2

class Shouted(ExactMatch):
    \"\"\"Equal but for case.\"\"\"
    name = "shouted"
"""


def test_losses_tokenizers_optimisers_schedules_and_metrics_of_packages(install: Install, tmp_path: Path) -> None:
    kinds = {"loss.focal": "Focal", "tokenizer.lowercase": "Lowercase", "optimizer.sgd": "sgd", "schedule.halving": "halving"}
    entries = {**kinds, "metric.shouted": "Shouted"}
    install("parts_of_ann", {name: f"parts_of_ann:{part}" for name, part in entries.items()}, TRAINING_KINDS)
    settings = {
        "task.loss": {"kind": "focal", "gamma": 1.0},
        "data.tokenizer": "lowercase",
        "train.optimizer": "sgd",
        "train.schedule": {"kind": "halving", "rate": 0.2},
        "train.metrics": ["shouted", "ter"],
        "train.steps": 4,
        "train.log_every": 1,
        "train.validate_sentences": 5,
    }
    result = tiny.train(tmp_path / "run", settings=settings)
    assert {"shouted", "ter"} <= result.scores.keys()
    config = load_config(tmp_path / "run" / "config.yaml")
    assert config.task["loss"] == {"kind": "focal", "gamma": 1.0} and config.train.optimizer["kind"] == "sgd"
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    trained = [line for line in lines if line["event"] == "train"]
    assert [line["lr"] for line in trained] == [0.2, 0.2, 0.1, 0.1]
    assert all(line["loss"] < line["nll"] for line in trained), "a probable token costs less than its cross-entropy"
    assert weft.load(tmp_path / "run", device="cpu").translate("a b").text is not None


def test_a_loss_of_a_package_may_extend_the_cross_entropy_and_trains_language_models(install: Install, tmp_path: Path) -> None:
    code = """
from weft.losses.cross_entropy import CrossEntropy

class Doubled(CrossEntropy):
    \"\"\"Twice the cross-entropy.\"\"\"
    def __call__(self, logits, labels, smoothing):
        return 2 * super().__call__(logits, labels, smoothing)
"""
    install("parts_of_ann", {"loss.doubled": "parts_of_ann:Doubled"}, code)
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 60)
    steps = {"train.steps": 1, "train.log_every": 1, "train.device": "cpu", "task.label_smoothing": 0.0}
    small = {"model.dim": 16, "model.decoder_layers": 1, "model.feedforward": 32, "task.segment": 16, "train.batch_tokens": 64}
    for out, recipe, data, own in (
        (tmp_path / "pairs", "transformer-tiny", tiny.generated("copy", 40), {}),
        (tmp_path / "text", "lm-tiny", str(text), small),
    ):
        weft.train(recipe, data=data, out=out, set={**steps, **own, "task.loss": "doubled"})
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        (trained,) = [line for line in lines if line["event"] == "train"]
        assert trained["loss"] == pytest.approx(2 * trained["nll"], rel=1e-3)


def test_a_recipe_of_a_package_is_listed_and_trains(install: Install, weft: tiny.Shell, tmp_path: Path) -> None:
    site = install("parts_of_ann", {})
    (site / "parts_of_ann.py").unlink()
    folder = site / "parts_of_ann" / "recipes"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise SystemExit('a recipe needs no import')\n")
    (folder / "ann-tiny.yaml").write_text("# A tiny model of Ann's.\n" + recipes()["transformer-tiny"].read_text("utf-8"))
    (site / "parts_of_ann-1.0.dist-info" / "entry_points.txt").write_text("[weft.recipes]\nann = parts_of_ann:recipes\n")
    forget()
    assert re.search(r"ann-tiny .*A tiny model of Ann's\.", weft("list", "recipes"))
    sets = ["--set", "train.steps=1", "--set", "data.vocabulary=300", "--set", "train.device=cpu"]
    weft("train", "ann-tiny", "--data", "generated:copy?count=50", "--out", str(tmp_path / "run"), *sets)
    assert (tmp_path / "run" / "model.safetensors").exists()
    (folder / "transformer-tiny.yaml").write_text("train: {steps: 1}\n")
    forget()
    with pytest.raises(ConfigError, match=r"recipes/transformer-tiny\.yaml: there is a recipe of this name in weft"):
        load_config("transformer-tiny")


TASK = """
from weft.tasks.base import Task
from weft.tasks.classification.task import ClassificationTask

class LetterTask(ClassificationTask):
    \"\"\"Labels texts, and shows how long they are.\"\"\"

    def explanation(self, predictor, prediction, text):
        return f"<p>{len(text)} characters</p>"

class SilentTask(ClassificationTask):
    \"\"\"Labels texts and shows nothing.\"\"\"

    explanation = Task.explanation
"""


def test_an_installed_task_is_explained_by_its_own_hook(install: Install, tmp_path: Path, weft: tiny.Shell) -> None:
    install("parts_of_ann", {"task.letter": "parts_of_ann:LetterTask", "task.silent": "parts_of_ann:SilentTask"}, TASK)
    data = tmp_path / "texts.tsv"
    data.write_text("a cat\tyes\nno dog\tno\n" * 20)
    for task in ("letter", "silent"):
        settings = {"task": task, "train.steps": 2, "train.save_every": 2}
        tiny.train(tmp_path / task, settings=settings, data=str(data), valid=str(data))
    weft("explain", tmp_path / "letter", "a cat", "-o", tmp_path / "page.html")
    assert "<p>5 characters</p>" in (tmp_path / "page.html").read_text()
    (served,) = Models([ModelLocation((str(tmp_path / "letter"),))]).served
    assert "<p>6 characters</p>" in explain_text(served, "no dog", ())
    says = ["its task, silent,", "has no explanation of its own", "weft predict"]
    weft.fails("explain", tmp_path / "silent", "a cat", "-o", tmp_path / "page.html", says=says)


def test_a_run_names_the_package_that_it_lacks(
    install: Install, tmp_path: Path, weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = install("parts_of_ann", {"task.letter": "parts_of_ann:LetterTask"}, TASK)
    data = tmp_path / "texts.tsv"
    data.write_text("a cat\tyes\nno dog\tno\n" * 20)
    tiny.train(tmp_path / "run", settings={"task": "letter", "train.steps": 1}, data=str(data), valid=str(data))
    weft("predict", tmp_path / "run", "a cat")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    forget()
    says = ["trained with parts of the package parts_of_ann, not installed here", "pip install parts_of_ann==1.0"]
    weft.fails("predict", tmp_path / "run", "a cat", says=says)
    weft.fails("train", "--resume", tmp_path / "run", "--set", "train.steps=2", says=says)
