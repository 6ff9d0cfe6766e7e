"""Cleaning of noisy data by `auto`: if a sample has many flawed pairs, training gets a copy without those that are flawed.

Only text that is translated from one known language into another is looked at: elsewhere, what the filters call a flaw may be
what the data is about, as copies are in summaries, or signs in transcriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from time import perf_counter

from weft.data.cleaning.clean import CleaningJob, clean
from weft.data.cleaning.filters import Choices, PairChecker
from weft.data.cleaning.learnt_statistics import Languages, LearntStatistics, sampled
from weft.data.formats import GeneratedPairs, Pairs, open_pairs
from weft.data.sentence_splitting import language_of
from weft.runs.open_run import Report
from weft.training.auto.choose_settings import SettingsDraft
from weft.training.log_text import rough_time
from weft.training.time_budget import TimeBudget

CLEANED = "cleaned.jsonl.gz"
"""The pairs without a flaw, in the folder of the run; a file for `--data` like any other."""

SAMPLE, LOOKED_AT, FEWEST = 20_000, 4_000, 5_000
"""Pairs of which filters learn, those of them that are looked at, and the fewest pairs of which much can be learnt."""

NOISY = 0.1
"""The share of flawed pairs from which on data is cleaned. Multi30k has 0.6 %, strings of software 5.5 %, and with a tenth of
noise 15.2 %."""

CLEAR = 0.5
"""The share of the texts of a side that have to be in one language."""

LONGEST = 0.1
"""The largest share of a time that cleaning may take."""

CHOICES = {"filters": {"duplicate": False, "near_duplicate": False}}
"""Pairs that occur twice are no noise."""


def clean_noisy_data(choice: SettingsDraft, out: Path, clock: TimeBudget | None, report: Report) -> None:
    """Puts a clean copy in the place of the training data if it is noisy, and says so."""
    data = choice.config.data
    if choice.config.task["kind"] != "translation":
        return
    pairs = [open_pairs(name) for name in data.files]
    if not all(isinstance(entry, str) for entry in data.train) or any(isinstance(each, GeneratedPairs) for each in pairs):
        return
    source, target = (
        language_of(given, data.files, side) for side, given in enumerate((data.source_language, data.target_language))
    )
    sample, total = sampled(chain.from_iterable(pairs), SAMPLE)
    if total < FEWEST or not sample:
        return
    learnt = LearntStatistics(sample, (source, target))
    if not _translates(learnt.languages):
        return
    began = perf_counter()
    noise = flawed_share(PairChecker(Choices(CHOICES), learnt), sample[:LOOKED_AT])
    if noise < NOISY:
        return
    seconds = (perf_counter() - began) / min(LOOKED_AT, len(sample)) * total
    found = f"{noise:.0%} of a sample of {min(LOOKED_AT, len(sample)):,} pairs have a flaw"
    if clock is not None and seconds > LONGEST * clock.left():
        advice = f"weft data clean {' '.join(data.files)} -o clean.tsv"
        choice.reasons["noise"] = f"{found}; to clean them takes {rough_time(seconds)}, which --time does not allow: {advice}"
        return
    report(f"{found}; leaving out those that do, which --no-clean keeps")
    kept = _cleaned(pairs, out, (source, target))
    choice.put({"data.source_language": source, "data.target_language": target})  # which the name of the copy does not say
    choice.config = choice.config.with_data([str((out / CLEANED).absolute())])
    choice.reasons["noise"] = f"{found}; {kept:,} of {total:,} pairs are kept, in {out / CLEANED} (--no-clean keeps all)"


def flawed_share(checker: PairChecker, pairs: Sequence[tuple[str, str]]) -> float:
    """The share of the pairs that a filter finds."""
    return sum(checker.flaw(checker.repaired(*pair)) is not None for pair in pairs) / len(pairs)


def _translates(languages: Sequence[Languages]) -> bool:
    """Whether each side is in a language of its own, by the labels that most of its texts have."""
    labels = [next(iter(side.shares), "") for side in languages]
    return labels[0] != labels[1] and all(max(side.shares.values(), default=0.0) >= CLEAR for side in languages)


def _cleaned(pairs: Sequence[Pairs], out: Path, languages: tuple[str | None, str | None]) -> int:
    """Writes the copy. Returns how many pairs it has."""
    done = clean(CleaningJob(pairs, str(out / CLEANED), Choices(CHOICES), languages))
    return int(done["kept"])
