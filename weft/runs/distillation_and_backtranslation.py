"""Distillation and back-translation: a trained run translates a corpus, for another model to learn from.

Distillation (Kim & Rush 2016): a trained run, the teacher, translates the sources of training data. A student that trains on
the teacher's translations instead of the references learns an easier task, because equal sources get equal words in equal
order. A teacher also aligns pairs, for students that learn how many tokens each source token stands for.

Back-translation (Sennrich et al. 2016): a run of the opposite direction translates text of the target language. The pairs of
these translations and the true text are further training data.

A line is translated as `weft translate` does.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from weft.config.sections import Config
from weft.data.corpus import cache_folder, close_own, trusted_place
from weft.data.formats import Pairs
from weft.decoding.predictor import Prediction
from weft.errors import DataError
from weft.file_access import replacing_file, same_file
from weft.runs.open_run import Report, silent
from weft.runs.prediction_work import PredictionWork
from weft.runs.sharded_prediction import predict_corpus
from weft.runs.translator import load
from weft.tasks.teacher_run import TeacherRun
from weft.tasks.translation.attention_alignment import Align, CharacterCounter, weights_of


class OpenTeacher(TeacherRun):
    """The run that data.teacher names, opened when it is needed."""

    def translate(self, config: Config, pairs: Sequence[Pairs], out: Path, report: Report) -> None:
        teacher, texts = str(config.data.teacher), Texts(pairs)
        folder = cache_folder(config.data.cache) / "distilled"
        folder.mkdir(parents=True, exist_ok=True)
        kept = trusted_place(folder / f"{translation_work([teacher], texts, out.with_suffix('.jsonl')).identity()}.jsonl")
        if not kept.exists():
            report(f"translating the training data with {teacher}")
            translate_corpus([teacher], texts, kept, device=config.train.device, report=report)
            close_own(kept)
        with open(kept, "rb") as content, replacing_file(out) as copy:
            shutil.copyfileobj(content, copy)

    def aligner(self, config: Config) -> Align:
        predictor = load([str(config.data.teacher)], device=config.train.device).translation_predictor("alignment")
        source, target = CharacterCounter(predictor.source), CharacterCounter(predictor.target)
        return lambda pairs: weights_of(predictor.model, source, target, pairs)


@dataclass(frozen=True)
class Texts:
    """Texts to translate: the sources of pairs, or every n-th of them.

    back: whether the translations are the sources of the pairs that are written, and the texts the targets.
    every: (k, n) takes the lines k, k + n, k + 2n, …, counted from 1 · as_pairs: whether pairs are written.
    """

    pairs: Sequence[Pairs]
    back: bool = False
    every: tuple[int, int] = (1, 1)
    as_pairs: bool = False
    together: ClassVar[bool] = False

    def lines(self) -> Iterator[str]:
        first, step = self.every
        return islice((source for source, _ in chain.from_iterable(self.pairs)), first - 1, None, step)

    def written(self, line: str, prediction: Prediction) -> str:
        translation = prediction.lines()
        if not self.as_pairs:
            return translation
        source, target = (translation, line) if self.back else (line, translation)
        return json.dumps({"source": source, "target": target}, ensure_ascii=False)

    def digest(self) -> list[Any]:
        return [[some.digest() for some in self.pairs], *([self.back, *self.every] if self.back or self.every[1] > 1 else [])]


def translation_work(
    runs: Sequence[str | Path], texts: Texts, out: Path, *, device: str = "auto", options: dict[str, Any] | None = None
) -> PredictionWork:
    """The work of translating each text into `out`, line by line; as pairs if its name ends in .jsonl."""
    inputs = replace(texts, as_pairs=out.suffix == ".jsonl")
    return PredictionWork([Path(run) for run in runs], inputs, out, device, options or {}, translates=True)


def translate_corpus(
    runs: Sequence[str | Path],
    texts: Texts,
    out: Path,
    *,
    device: str = "auto",
    options: dict[str, Any] | None = None,
    report: Report = silent,
) -> None:
    """Writes the translation of each text into `out`. If the same work was interrupted, it continues."""
    work = translation_work(runs, texts, out, device=device, options=options)
    predict_corpus(work, report=report)


def check_out(out: Path, data: Sequence[str]) -> None:
    """Raises an error if translations of the files in `data`, as the command line names them, cannot be written into `out`."""
    if out.suffix == ".gz":
        raise DataError(f"{out}: interrupted work can continue only in a plain file; choose a name without .gz")
    if out.suffix in (".tsv", ".csv") or (out.suffix.lower() == ".jsonl" and out.suffix != ".jsonl"):
        raise DataError(f"{out}: choose a name that ends in .jsonl for pairs, or in .txt for translations only")
    if out.is_dir():
        raise DataError(f"{out}: it is a folder; name a file in it")
    files = [Path(name) for spec in data for name in (spec, *spec.partition("#")[0].split(","))]
    if any(same_file(file, out) for file in files):
        raise DataError(f"{out}: it would overwrite the text that is translated; choose another name")
