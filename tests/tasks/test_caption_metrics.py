"""CIDEr-D and BLEU-4 of captions equal the figures of pycocoevalcap 1.2, which were computed once and are stored here."""

from __future__ import annotations

import numpy as np
import pytest

from weft.evaluation.metrics import score
from weft.tasks.captioning.metrics import CaptionBleu, CiderD, words

REFERENCES = [
    ["a dog runs through the green grass", "a brown dog is running in a field", "the dog runs"],
    ["two men play football on a field", "men are playing football", "two men in red play on the grass"],
    ["a woman in a red coat walks a dog", "a woman walks"],
    ["a child jumps into the water"],
]
CAPTIONS = ["a brown dog runs through the grass", "two men are playing football", "a dog a dog a dog walks", "water"]
CIDER = [2.907097818578, 3.778700706849, 0.871229500589, 0.878593536182]
BLEU = 33.7875303638903
JOINED = ["\n".join(lines) for lines in REFERENCES]


def test_the_figures_are_those_of_pycocoevalcap() -> None:
    assert CiderD().count(CAPTIONS, JOINED)[:, 0] == pytest.approx(CIDER, abs=1e-9)
    found = score(CAPTIONS, JOINED, [CiderD(), CaptionBleu()])
    assert found["CIDEr-D"].value == pytest.approx(np.mean(CIDER))
    assert found["BLEU-4"].value == pytest.approx(BLEU, abs=1e-4)


def test_case_and_punctuation_do_not_count() -> None:
    assert words("A man 's well-worn T-shirt , isn't it ?") == ["a", "man", "'s", "well-worn", "t-shirt", "isn", "'t", "it"]
    loud = [text.upper() + " !" for text in CAPTIONS]
    assert np.array_equal(CiderD().count(loud, JOINED), CiderD().count(CAPTIONS, JOINED))
    assert np.array_equal(CaptionBleu().count(loud, JOINED), CaptionBleu().count(CAPTIONS, JOINED))


def test_a_caption_equal_to_its_only_reference_has_the_highest_score() -> None:
    assert CiderD().count(["a b c d", "e f g h"], ["a b c d", "e f g h"])[:, 0] == pytest.approx([10, 10])
    assert CiderD().count(["", "e f g h"], ["a b c d", "e f g h"])[0, 0] == 0
