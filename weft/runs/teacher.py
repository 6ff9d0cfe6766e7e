"""Another run as a teacher: opened once, for its translations and alignments."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from weft.config.sections import Config
from weft.data.corpus_cache import cache_folder
from weft.data.formats import Pairs
from weft.runs.distillation import Tell, Texts, _identity, translate_corpus
from weft.runs.translator import load
from weft.tasks.base import Align, TeacherRun
from weft.tasks.translation.attention_alignment import CharacterCounter, weights_of


class OpenTeacher(TeacherRun):
    """The run that data.teacher names, opened when it is needed."""

    def translate(self, config: Config, pairs: Sequence[Pairs], out: Path, tell: Tell) -> None:
        teacher, texts = str(config.data.teacher), Texts(pairs)
        folder = (Path(config.data.cache).expanduser() if config.data.cache else cache_folder()) / "distilled"
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / f"{_identity([teacher], texts, {}, '.jsonl')}.jsonl"
        if not kept.exists():
            tell(f"translating the training data with {teacher}")
            translate_corpus([teacher], texts, kept, device=config.train.device, tell=tell)
        shutil.copyfile(kept, aside := out.with_name(out.name + ".part"))
        aside.replace(out)

    def aligner(self, config: Config) -> Align:
        predictor = load([str(config.data.teacher)], device=config.train.device).translation_predictor("alignment")
        source, target = CharacterCounter(predictor.source), CharacterCounter(predictor.target)
        return lambda pairs: weights_of(predictor.model, source, target, pairs)
