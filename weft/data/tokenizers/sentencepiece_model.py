"""SentencePiece models: trained by weft, given as a file, or of an imported model whose ids are those of another table."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from weft.data.batch import UNK
from weft.data.text_lines import check_file
from weft.data.tokenizers import RESERVED, SPACE, Tokenizer
from weft.data.tokenizers.word_character_byte import NO_TEXT
from weft.errors import ConfigError, DataError
from weft.version import install

LONGEST = 1 << 20
"""Bytes of the longest line that training reads; SentencePiece leaves out longer ones."""


def load_processor(content: bytes) -> Any:
    """SentencePiece's processor of a model file. Raises ValueError for anything else."""
    inner = _package().SentencePieceProcessor()
    try:
        inner.LoadFromSerializedProto(content)
    except RuntimeError:
        raise ValueError("its content cannot be parsed") from None
    if inner.get_piece_size() == 0:
        raise ValueError("it is empty")
    return inner


def _package() -> Any:
    try:
        import sentencepiece
    except ImportError:
        raise ConfigError(f"the package `sentencepiece` is missing: {install('sentencepiece')}") from None
    return sentencepiece


class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model (Kudo & Richardson, 2018, arXiv:1808.06226), trained on the data or read from a file.

    The special ids of weft replace its control and unknown pieces; all other pieces keep their order. In a model that weft
    trains, `</s>` is piece 0 and `<unk>` piece 1, as in Marian's vocabularies.

    model          path of an existing .model file, of which a trained run has its own copy; null: train one
    algorithm      how a model is trained: unigram or bpe
    normalize      its normalisation of Unicode: nmt_nfkc is that of most published models; identity: none
    character_coverage  the share of characters that the vocabulary knows; with 1, no training text has UNK
    byte_fallback  encode a character outside the vocabulary as its UTF-8 bytes, which take 256 ids; otherwise as UNK
    """

    suffix: ClassVar[str] = ".model"

    def __init__(
        self,
        *,
        model: str | None = None,
        algorithm: Literal["unigram", "bpe"] = "unigram",
        normalize: Literal["nmt_nfkc", "nfkc", "identity"] = "nmt_nfkc",
        byte_fallback: bool = False,
        character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 0.9995,
    ) -> None:
        self.model, self.algorithm, self.normalize, self.byte_fallback = model, algorithm, normalize, byte_fallback
        self.character_coverage = character_coverage
        self.learns = model is None
        self._content = b""
        self._inner: Any = None

    def train(self, texts: Iterable[str], size: int) -> None:
        """Trains a model, or reads the file, which then determines the vocabulary."""
        if self.model is None:
            return self.restore(self._trained(texts, size))
        path = check_file(Path(self.model))
        try:
            self.restore(path.read_bytes())
        except ValueError as error:
            raise DataError(f"{path}: not a SentencePiece model: {error}.") from None

    def _trained(self, texts: Iterable[str], size: int) -> bytes:
        lines = (text for text in texts if text.strip())
        first = next(iter(lines), None)
        if first is None:
            raise DataError(NO_TEXT)
        package, model = _package(), BytesIO()
        try:
            package.SentencePieceTrainer.train(
                sentence_iterator=iter([first, *lines]),
                model_writer=model,
                model_type=self.algorithm,
                vocab_size=size - RESERVED + 2,
                hard_vocab_limit=self.algorithm == "bpe",
                normalization_rule_name=self.normalize,
                byte_fallback=self.byte_fallback,
                character_coverage=self.character_coverage,
                bos_id=-1,
                eos_id=0,
                unk_id=1,
                max_sentence_length=LONGEST,
                num_threads=1,  # so that equal texts give equal models
                minloglevel=3,
            )
        except (RuntimeError, OSError) as error:
            reason = str(error).strip().rpartition("] ")[2] or str(error).strip()
            raise DataError(f"a SentencePiece vocabulary of {size:,} cannot be trained on this text: {reason}") from None
        return model.getvalue()

    def restore(self, content: bytes) -> None:
        inner = load_processor(content)
        self._inner, self._content = inner, content
        numbers = range(inner.get_piece_size())
        pieces = [i for i in numbers if not (inner.IsControl(i) or inner.IsUnknown(i) or inner.IsUnused(i))]
        self._outer = np.full(len(numbers), UNK, np.int64)
        self._outer[pieces] = np.arange(len(pieces)) + RESERVED
        self._pieces = pieces

    def dump(self) -> bytes:
        return self._content

    @property
    def processor(self) -> Any:
        """SentencePiece's own object."""
        return self._inner

    @property
    def numbers(self) -> Sequence[int]:
        """The ids of SentencePiece for weft's from RESERVED on."""
        return self._pieces

    @property
    def size(self) -> int:
        return RESERVED + len(self._pieces)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self._outer[ids].tolist() if ids else [] for ids in self._inner.encode(list(texts), out_type=int)]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode([self._pieces[i - RESERVED] for i in ids if i >= RESERVED]))

    def piece(self, number: int) -> str:
        return str(self._inner.id_to_piece(self._pieces[number - RESERVED]))


class MappedSentencePieceTokenizer(Tokenizer):
    """The tokenizer of an imported model: a SentencePiece model whose pieces have their ids from a separate table.

    Source and target have models of their own, and often one table. A code such as `>>fra<<` at the beginning of a text is
    one token, if the model has codes. It cannot be trained: `weft import` makes it.
    """

    learns = False

    def __init__(self) -> None:
        self._content = b""

    @classmethod
    def make(cls, model: bytes, pieces: Sequence[str], codes: Mapping[str, int] | None = None) -> MappedSentencePieceTokenizer:
        """A tokenizer with the ids RESERVED, … for `pieces`. codes: what may precede a text, with its ids; None: nothing."""
        content = {"pieces": list(pieces), "codes": codes, "model": base64.b64encode(model).decode()}
        made = cls()
        made.restore(json.dumps(content, ensure_ascii=False).encode())
        return made

    def train(self, texts: Iterable[str], size: int) -> None:
        raise ConfigError(
            "data.tokenizer: mapped_sentencepiece comes with imported models; start from a run that `weft import` has made, or "
            "choose another tokenizer"
        )

    def restore(self, content: bytes) -> None:
        saved = json.loads(content)
        if not isinstance(saved, dict) or not saved.keys() >= {"pieces", "codes", "model"}:
            raise ValueError("it has no table of pieces")
        pieces, codes = saved["pieces"], saved["codes"]
        if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
            raise ValueError("its pieces are no list of texts")
        if codes is not None and not all(type(number) is int and number >= 0 for number in codes.values()):
            raise ValueError("its codes have no numbers")
        self.model = base64.b64decode(saved["model"], validate=True)
        self._inner, self._content = load_processor(self.model), content
        self.pieces: list[str] = pieces
        self.codes: dict[str, int] | None = codes
        self._ids = {piece: number for number, piece in enumerate(self.pieces, RESERVED)}

    def dump(self) -> bytes:
        return self._content

    def shares_ids(self, other: Tokenizer) -> bool:
        return self is other or (isinstance(other, MappedSentencePieceTokenizer) and self.pieces == other.pieces)

    @property
    def size(self) -> int:
        return RESERVED + len(self.pieces)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        parted = [self._code(text) for text in texts]
        # Pieces as strings: a character that this model does not know may be a piece of the other side's model.
        encoded = self._inner.encode([text for _, text in parted], out_type=str)
        return [[*code, *(self._ids.get(piece, UNK) for piece in pieces)] for (code, _), pieces in zip(parted, encoded)]

    def _code(self, text: str) -> tuple[list[int], str]:
        """The id of the code at the beginning of a text, and what follows it."""
        if self.codes is None or not text.startswith(">>") or (end := text.find("<<")) < 0:
            return [], text
        return [self.codes.get(text[: end + 2], UNK)], text[end + 2 :]

    def decode(self, ids: Sequence[int]) -> str:
        text = self._inner.decode_pieces([self.pieces[i - RESERVED] for i in ids if RESERVED <= i < self.size])
        return str(text).replace(SPACE, " ").strip()

    def piece(self, number: int) -> str:
        return self.pieces[number - RESERVED]
