"""Which of sacreBLEU's tokenizers BLEU needs: the usual one finds words at spaces, which some languages do not write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import ConfigError
from weft.evaluation.metrics import Bleu

USUAL = "13a"

LANGUAGES: dict[str, tuple[str, ...]] = {
    "zh": ("zh",),
    "cmn": ("zh",),
    "yue": ("zh",),
    "ja": ("ja-mecab", "char"),
    "jpn": ("ja-mecab", "char"),
    "ko": ("ko-mecab", USUAL),
    "kor": ("ko-mecab", USUAL),
    "th": ("char",),
    "lo": ("char",),
    "km": ("char",),
    "my": ("char",),
    "bo": ("char",),
    "dz": ("char",),
}
"""Language → its tokenizer and, if that may not be installed, the one to use instead. All others have the usual one."""

SCRIPTS = (
    ("ja", "Japanese", re.compile(r"[\u3040-\u30ff]"), 0.05),
    ("zh", "Chinese", re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff]"), 0.5),
    ("th", "Thai, Lao, Khmer, Burmese or Tibetan", re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]"), 0.5),
)
"""Language, script, its characters, and the share of them from which on a text is in it; the first that applies."""

SAMPLE = 1000
"""Texts that are looked at to find the script."""

SPACED = 1 / 8
"""A text with more spaces per letter has been split into words already."""


@dataclass(frozen=True)
class Tokenization:
    """The name of a tokenizer, and a sentence that says why it was chosen, if it is not the usual one."""

    name: str
    note: str = ""


def choose_tokenization(wanted: str, language: str | None, references: Sequence[str]) -> Tokenization:
    """The tokenizer called `wanted`; for "auto", that of the target language or, if it is None, of the references' script."""
    if wanted != "auto":
        return Tokenization(wanted)
    code = re.split("[-_]", language.lower())[0] if language else ""
    why = f"the target language is {language}"
    if not language:
        code, script = script_of(references[:SAMPLE])
        why = f"the references are in {script} script"
    first, *others = LANGUAGES.get(code, (USUAL,))
    problem = ""
    for name in (first, *others):
        try:
            Bleu(tokenize=name)
        except ConfigError as error:
            problem = f" ({error})"
            continue
        return Tokenization(
            name, f"BLEU uses sacreBLEU's tokenizer {name}, because {why}{problem}" if code in LANGUAGES else ""
        )
    raise AssertionError(f"no tokenizer for {code} works without other packages")


def script_of(texts: Sequence[str]) -> tuple[str, str]:
    """The language and script of texts that are written without spaces; ("", "") for all others."""
    whole = "\n".join(texts)
    letters = sum(map(str.isalpha, whole)) or 1
    for language, script, characters, least in SCRIPTS:
        count = len(characters.findall(whole))
        if count / max(letters, count) >= least and sum(line.strip().count(" ") for line in texts) / letters < SPACED:
            return language, script
    return "", ""
