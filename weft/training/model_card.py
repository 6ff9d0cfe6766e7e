"""The model card of a run: `README.md` in the form of the Hugging Face hub, with a YAML header for programs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from weft.config.corpus_entries import weighed
from weft.config.sections import Config
from weft.data.sentence_splitting import language_of
from weft.file_access import replace_file
from weft.models.base import Network
from weft.runs.open_run import TrainedRun
from weft.runs.packed_run import CARD
from weft.runs.run_folder import complete, records
from weft.tasks.base import Task, all_metrics
from weft.training.log_text import NO_SCORES, duration
from weft.training.verdict import Floor
from weft.version import VERSION

MARK = "<!-- Written by weft. Remove this line to keep your own changes. -->"

PIPELINES = {
    "translation": "translation",
    "classification": "text-classification",
    "tagging": "token-classification",
    "language_model": "text-generation",
    "transcription": "automatic-speech-recognition",
    "captioning": "image-to-text",
}
"""The hub's name of a task."""


@dataclass(frozen=True)
class Card:
    """Everything that a card says besides the configuration.

    scores: of the published weights, on validation data · training: how they were trained, by name · data: sizes of the data
    """

    name: str
    config: Config
    task: Task
    parameters: int
    scores: Mapping[str, float]
    training: Mapping[str, str]
    data: Mapping[str, Any] = field(default_factory=dict)
    floor: Floor | None = None

    def text(self) -> str:
        """The whole file."""
        header = yaml.safe_dump(self.header(), sort_keys=False, allow_unicode=True)
        return f"---\n{header}---\n{MARK}\n\n" + "\n".join(self._body())

    def header(self) -> dict[str, Any]:
        """The header. The licence is left to people: only they know that of the data."""
        kind, languages = self.config.task["kind"], [code for code in self._languages() if code]
        found: dict[str, Any] = {"library_name": "weft", "license": "unknown"}
        if languages:
            found["language"] = list(dict.fromkeys(languages))
        if kind in PIPELINES:
            found["pipeline_tag"] = PIPELINES[kind]
        found["tags"] = ["weft", kind, self.config.model["kind"]]
        if self.scores:
            metrics = [{"type": key, "value": round(value, 4)} for key, value in self.scores.items()]
            dataset = {"name": "validation data", "type": "validation"}
            result = {"task": {"type": PIPELINES.get(kind, kind)}, "dataset": dataset, "metrics": metrics}
            found["model-index"] = [{"name": self.name, "results": [result]}]
        return found

    def _body(self) -> Iterator[str]:
        yield f"# {self.name}\n"
        source, target = self._languages()
        between = f", {source} to {target}" if source and target else ""
        kind = f"`{self.config.model['kind']}` for the task `{self.config.task['kind']}`{between}"
        yield f"A model of the kind {kind}, with {self.parameters:,} parameters, trained with weft {VERSION}.\n"
        yield from self._use()
        yield from self._scores()
        yield from _section("Data", [*self._corpora(), *((name, f"{value:,}") for name, value in self.data.items())])
        yield from _section("Training", self.training.items())
        yield from _section("Lineage", self._lineage())
        yield "## Licence\n"
        yield "Not stated: the licence of the weights depends on that of the data. Set `license` at the top of this file.\n"

    def _languages(self) -> tuple[str | None, str | None]:
        """The languages of both sides, as settings or suffixes of the data say."""
        data = self.config.data
        return language_of(data.source_language, data.files), language_of(data.target_language, data.files, 1)

    def _use(self) -> Iterator[str]:
        yield "## Use\n"
        yield "```sh"
        yield from (command.format(run=shlex.quote(self.name)) for command in self.task.info.commands)
        yield "```\n"
        yield f"`{self.name}` is the folder of these files. In Python: `weft.load({self.name!r})`.\n"

    def _scores(self) -> Iterator[str]:
        yield "## Scores\n"
        if not self.scores:
            yield "There was no validation data, so the model has no scores.\n"
            return
        metrics = {each.key(): each for each in all_metrics(self.task, tokenize=getattr(self.task, "tokenize", None))}
        yield "On the validation data, as training measures them. The trivial answer is what needs no model.\n"
        yield "| score | value | trivial answer | signature |"
        yield "|---|---|---|---|"
        for key, value in self.scores.items():
            floor = self.floor if self.floor is not None and self.floor.measure.key == key else None
            trivial = f"{floor.value:.1f} ({floor.answer})" if floor else ""
            name, signature = (metrics[key].name, f"`{metrics[key].signature}`") if key in metrics else (key, "")
            yield f"| {name} | {value:.4g} | {trivial} | {signature.replace('|', ' ')} |"
        yield ""

    def _corpora(self) -> Iterator[tuple[str, str]]:
        """The names of the data without their folders, which say nothing elsewhere."""
        data = self.config.data
        for corpus in weighed(data.train):
            tag = f", tag {corpus.tag}" if corpus.tag else ""
            yield "training data", f"{', '.join(map(_bare, corpus.files))}{tag}"
        held = f"{data.hold_out:,} held out of the training data" if data.hold_out else "none"
        yield "validation data", ", ".join(_bare(str(getattr(each, "files", each))) for each in data.valid) or held
        yield "tokenizer", f"{data.tokenizer['kind']}, at most {data.vocabulary:,} tokens"

    def _lineage(self) -> Iterator[tuple[str, str]]:
        start, data = self.config.start, self.config.data
        if start.run:
            yield "started from", f"{_bare(start.run)}{f', weights {start.weights}' if start.weights else ''}"
        if start.vectors:
            yield "word vectors", _bare(start.vectors)
        if data.teacher:
            yield "teacher", _bare(data.teacher)
        if data.tokenizer_of:
            yield "tokenizer of", _bare(data.tokenizer_of)


def _section(title: str, facts: Any) -> Iterator[str]:
    lines = [f"- {name}: {value}" for name, value in facts]
    if lines:
        yield from (f"## {title}\n", *lines, "")


def _bare(spec: str) -> str:
    """A file or a pair of files without folders; generated data keeps its name."""
    return ",".join(part if part.startswith("generated:") else part.rstrip("/").rpartition("/")[2] for part in spec.split(","))


def training_facts(record: Mapping[str, Any], device: torch.device | None = None) -> dict[str, str]:
    """Facts about the training from the last record of its log."""
    facts = {}
    if "step" in record:
        facts["steps"] = (
            f"{record['step']:,} (stopped by {record.get('stopped', 'the user')}), {record.get('weights', '')} weights"
        )
    if "seconds" in record:
        facts["time"] = duration(record["seconds"]) + (f" on {device_name(device)}" if device is not None else "")
    if record.get("peak_memory"):
        facts["peak memory"] = f"{record['peak_memory'] / 1e6:,.0f} MB"
    energy = "not measured: no counter of this machine can be read"
    if "joules" in record:
        energy = f"{record['joules'] / 3600:.3g} Wh, by the counters of {record['joules_of']}, with all else that ran on them"
    return {**facts, "energy": energy}


def device_name(device: torch.device) -> str:
    """The name of a device for people."""
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    threads = torch.get_num_threads()
    return f"{device.type}, {threads} thread{'s' if threads > 1 else ''}"


def ended(run: Path) -> bool:
    """Whether the training of a run has ended with all its files, of which the model card is the last one."""
    return complete(run) and (run / CARD).is_file()


def write_card(
    run: Path, task: Task, model: Network, *, floor: Floor | None = None, device: torch.device | None = None, data: bool = True
) -> bool:
    """Writes the card of a finished run. Returns whether it did: a file that people have written or changed stays.

    data: whether the task has read its data, and can describe it.
    """
    file = run / CARD
    if file.exists() and MARK not in file.read_text("utf-8", errors="replace"):
        return False
    last: Mapping[str, Any] = next((each for each in reversed(records(run)) if each["event"] == "summary"), {})
    scores = {name: value for name, value in last.items() if name not in NO_SCORES and isinstance(value, float)}
    counts, training = _counts(task.describe()) if data else {}, training_facts(last, device)
    card = Card(run.resolve().name, task.config, task, model.count_parameters(), scores, training, counts, floor)
    replace_file(file, card.text())
    return True


def _counts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if isinstance(value, int)}


def ensure_card(trained: TrainedRun) -> None:
    """Writes the card of an opened run that has none, as of those trained by earlier versions."""
    if not (trained.folder / CARD).exists():
        write_card(trained.folder, trained.task, trained.model, data=False)
