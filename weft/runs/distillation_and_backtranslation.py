"""Distillation and back-translation: a trained run translates a corpus, for another model to learn from.

Distillation (Kim & Rush 2016): a trained run, the teacher, translates the sources of training data. A student that trains on
the teacher's translations instead of the references learns an easier task, because equal sources get equal words in equal
order. A teacher also aligns pairs, for students that learn how many tokens each source token stands for.

Back-translation (Sennrich et al. 2016): a run of the opposite direction translates text of the target language. The pairs of
these translations and the true text are further training data.

A line is translated as `weft translate` does.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from weft.config.sections import Config
from weft.data.corpus import cache_folder
from weft.data.formats import Pairs
from weft.data.text_lines import file_digest
from weft.decoding.decoding_options import changed
from weft.decoding.worker_processes import cores
from weft.errors import DataError
from weft.file_access import same_file
from weft.runs.open_run import Report, run_config, silent
from weft.runs.run_folder import MODEL
from weft.runs.translator import Translator, load
from weft.tasks.base import TeacherRun
from weft.tasks.translation.attention_alignment import Align, CharacterCounter, weights_of


class OpenTeacher(TeacherRun):
    """The run that data.teacher names, opened when it is needed."""

    def translate(self, config: Config, pairs: Sequence[Pairs], out: Path, report: Report) -> None:
        teacher, texts = str(config.data.teacher), Texts(pairs)
        folder = cache_folder(config.data.cache) / "distilled"
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"{_identity([teacher], texts, {}, '.jsonl')}.jsonl"
        if not kept.exists():
            report(f"translating the training data with {teacher}")
            translate_corpus([teacher], texts, kept, device=config.train.device, report=report)
        shutil.copyfile(kept, aside := out.with_name(out.name + ".part"))
        aside.replace(out)

    def aligner(self, config: Config) -> Align:
        predictor = load([str(config.data.teacher)], device=config.train.device).translation_predictor("alignment")
        source, target = CharacterCounter(predictor.source), CharacterCounter(predictor.target)
        return lambda pairs: weights_of(predictor.model, source, target, pairs)


WINDOW = 8192
"""Lines translated together. After each window everything is on disk."""


@dataclass(frozen=True)
class Texts:
    """Texts to translate: the sources of pairs, or every n-th of them.

    back: whether the translations are the sources of the pairs that are written, and the texts the targets.
    shard: (k, n) takes the lines k, k + n, k + 2n, …, counted from 1.
    """

    pairs: Sequence[Pairs]
    back: bool = False
    shard: tuple[int, int] = (1, 1)

    def lines(self) -> Iterator[str]:
        first, step = self.shard
        return islice((source for source, _ in chain.from_iterable(self.pairs)), first - 1, None, step)

    def pair(self, text: str, translation: str) -> str:
        """A pair to write."""
        source, target = (translation, text) if self.back else (text, translation)
        return json.dumps({"source": source, "target": target}, ensure_ascii=False)

    def digest(self) -> list[Any]:
        return [[some.digest() for some in self.pairs], *([self.back, *self.shard] if self.back or self.shard[1] > 1 else [])]


def translate_corpus(
    runs: Sequence[str | Path],
    texts: Texts,
    out: Path,
    *,
    device: str = "auto",
    options: dict[str, Any] | None = None,
    advance: Callable[[], None] = lambda: None,
    report: Report = silent,
) -> None:
    """Writes the translation of each text into `out`, line by line; as pairs if its name ends in .jsonl.

    What is done so far is in OUT.part. If the same work was interrupted, it continues there.
    """
    options = options or {}
    part, mark = (out.with_name(out.name + ending) for ending in (".part", ".part.id"))
    identity = _identity(runs, texts, options, out.suffix)
    with open(part, "a+b") as file:
        _wait_for(file, mark, identity, out)
        if not part.exists() or part.stat().st_ino != os.fstat(file.fileno()).st_ino:
            return  # it has finished
        same = mark.exists() and mark.read_text("utf-8") == identity
        done = _whole_lines(file) if same else file.truncate(0)
        mark.write_text(identity, "utf-8")
        if done:
            report(f"{out}: continuing after {done:,} lines")
        translator = load(runs, device=device, warn=report)
        for text, translation in _translations(translator, texts, done, options):
            file.write((texts.pair(text, translation) if out.suffix == ".jsonl" else translation).encode() + b"\n")
            advance()
        file.flush()
        os.replace(part, out)
        mark.unlink()


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


def _wait_for(file: IO[bytes], mark: Path, identity: str, out: Path) -> None:
    """Locks a file. Another process may be at the same work; it must not be at other work with the same name."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if mark.exists() and mark.read_text("utf-8") != identity:
            raise DataError(f"{out}: another process is writing other translations into it; choose another name") from None
        fcntl.flock(file, fcntl.LOCK_EX)


def _translations(translator: Translator, texts: Texts, done: int, options: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Texts with their translations, from number `done` on."""
    predictor = translator.translation_predictor("translating a corpus", auto_workers=cores(), **options)
    lines = islice(texts.lines(), done, None)
    while window := list(islice(lines, WINDOW)):
        translations = predictor.predict(map(predictor.parse_input, window), together=True, first_line=done + 1)
        for text, translation in zip(window, translations, strict=True):
            yield text, " ".join(translation.text.splitlines())
        done += len(window)


def _whole_lines(file: IO[bytes]) -> int:
    """The number of complete lines in a file. What a crash left behind the last of them is cut off."""
    file.seek(0)
    count, end = 0, 0
    for line in file:
        if line.endswith(b"\n"):
            count, end = count + 1, end + len(line)
    file.truncate(end)
    return count


def _identity(runs: Sequence[str | Path], texts: Texts, options: dict[str, Any], form: str) -> str:
    """A hash of everything that decides what is written: the weights, how they decode, the data and the form."""
    folders = [Path(run) for run in runs]
    sections = [changed(run_config(folder).decode, options).model_dump() for folder in folders]
    weights = [file_digest(str(folder / MODEL)) if (folder / MODEL).is_file() else "" for folder in folders]
    key = json.dumps([sections, weights, *texts.digest(), form])
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
