"""How often the server recognises the language of three words, among forty languages of which py3langid knows 32.

    pip download --no-deps django==5.2.* && unzip django-*.whl -d DIR
    python benchmarks/languages.py DIR

Phrases of three words come from Django's translated messages. The two weights of `weft.serve.languages` were chosen on such
phrases. Beside both detectors together are py3langid and the n-grams alone. A language that py3langid does not know cannot be
found by it.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from babel.messages.pofile import read_po

from weft.serve import languages

KNOWN = "en bg ca cs da de el es et fi fr hr hu id it lt lv nl pl pt ro ru sk sl sv tr uk vi sr mk be nb".split()  # noqa: SIM905
OTHERS = "hsb dsb ast ia io ckb os".split()  # noqa: SIM905
NOT_TEXT = re.compile(r"%\(?\w*\)?[sd]|\{[^}]*\}|<[^>]+>")
PHRASES, LETTERS = 150, 8


def phrases(folder: Path, code: str) -> list[str]:
    """Some phrases of a language. Sources are English."""
    found = dict[str, None]()
    for path in sorted(folder.rglob(f"locale/{'de' if code == 'en' else code}/LC_MESSAGES/*.po")):
        with path.open("rb") as file:
            for message in read_po(file, abort_invalid=False):
                text = message.id if code == "en" else message.string
                for form in (text,) if isinstance(text, str) else text:
                    words = NOT_TEXT.sub(" ", form or "").split()
                    found |= dict.fromkeys(" ".join(words[at : at + 3]) for at in range(0, len(words) - 2, 3))
    usable = sorted(each for each in found if sum(map(str.isalpha, each)) >= LETTERS)
    random.Random(1).shuffle(usable)
    return usable[:PHRASES]


def by_langid(text: str, codes: list[str]) -> str:
    scores = languages._langid_scores(text, codes)
    return max(codes, key=lambda code: scores[code])


def by_ngrams(text: str, codes: list[str]) -> str:
    words = [word for word in languages.NOT_LETTERS.split(text.lower()) if word]
    return max(codes, key=lambda code: languages._log_likelihood(words, code))


def by_both(text: str, codes: list[str]) -> str:
    return str(languages.detect_language(text, codes)[0]["language"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with Django's package")
    options = parser.parse_args()
    codes = [*KNOWN, *OTHERS]
    with redirect_stdout(None):  # Babel prints warnings about plural forms
        texts = {code: phrases(options.folder, code) for code in codes}
    print(f"| detector | {len(KNOWN)} known | {len(OTHERS)} others | {' | '.join(OTHERS)} |\n{'|---' * (3 + len(OTHERS))}|")
    detectors: dict[str, Callable[[str, list[str]], str]] = {"py3langid": by_langid, "n-grams": by_ngrams, "both": by_both}
    for name, detect in detectors.items():
        share = {code: sum(detect(text, codes) == code for text in texts[code]) / len(texts[code]) for code in codes}
        means = [sum(share[code] for code in group) / len(group) for group in (KNOWN, OTHERS)]
        print(f"| {name} | " + " | ".join(f"{100 * each:.0f} %" for each in (*means, *(share[code] for code in OTHERS))) + " |")


if __name__ == "__main__":
    main()
