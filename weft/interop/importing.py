"""`import_model`: finds out what a model is, and makes a run of it, or says why it cannot."""

from pathlib import Path

from weft.data.tokenizers import Tokenizer
from weft.data.tokenizers.added_tokens import ExtendedTokenizer
from weft.errors import RunError
from weft.file_access import why_unreadable
from weft.interop.foreign_files import find, read_json
from weft.interop.imported_run import ImportedModel

REFUSED = {
    "mbart": "mBART normalises its embeddings, which no model of weft does",
    "bart": "BART has learned positions and normalises its embeddings, which no model of weft does",
    "t5": "T5 has RMSNorm and bucketed relative positions, which weft has not (MADLAD is a T5 too)",
    "mt5": "mT5 has RMSNorm and bucketed relative positions, which weft has not (MADLAD is one too)",
    "umt5": "UMT5 has RMSNorm and bucketed relative positions, which weft has not",
    "t5gemma": "T5Gemma has RMSNorm and gated attention layers of its own, which weft has not",
    "nllb-moe": "NLLB-MoE is a mixture of experts, which weft has not; NLLB's dense models can be imported",
    "switch_transformers": "Switch Transformers are mixtures of experts, which weft has not",
    "fsmt": "FSMT has learned tables per language, and is not supported",
    "encoder-decoder": "an EncoderDecoderModel of two pretrained models is not supported",
    "seamless_m4t": "SeamlessM4T reads sound and has several decoders; it is not supported",
}
KNOWN = (
    "weft imports MarianMT (OPUS-MT), Pegasus of weft's own export, M2M100 and NLLB (dense) of transformers, and Marian's npz"
)


def import_model(path: Path, out: Path) -> ImportedModel:
    """Makes the run `out` of a folder of transformers, or of a Marian model (npz), and returns what it read."""
    model = read_model(path)
    model.save(out)
    return model


def read_model(path: Path) -> ImportedModel:
    """The model of a folder or file, by its format. Raises RunError for one that weft cannot run, and says why."""
    if problem := why_unreadable(path, "file or folder"):
        raise RunError(f"{path}: {problem}")
    if path.is_file():
        if path.suffix != ".npz":
            raise RunError(f"{path}: not a model that weft knows; give the folder of a model, or Marian's .npz. {KNOWN}")
        return _marian(path)
    settings = find(path, "config.json")
    if settings is None:
        files = sorted(path.glob("*.npz"))
        if len(files) == 1:
            return _marian(files[0])
        more = f"it has {len(files)} npz files; give one of them" if files else "it has no config.json and no .npz"
        raise RunError(f"{path}: not a model that weft knows: {more}. {KNOWN}")
    kind = str(read_json(settings).get("model_type"))
    if kind in ("marian", "pegasus"):
        from weft.interop.transformers_folder import read

        return read(path)
    if kind == "m2m_100":
        from weft.interop.transformers_m2m100 import read as read_m2m100

        return read_m2m100(path)
    reason = REFUSED.get(kind, f"weft does not know the architecture {kind}")
    raise RunError(f"{path}: {reason}. {KNOWN}")


def needs_two(tokenizer: Tokenizer) -> bool:
    """Whether a model needs the languages of both sides as tags."""
    return isinstance(tokenizer, ExtendedTokenizer) and tokenizer.directed


def _marian(file: Path) -> ImportedModel:
    from weft.interop.marian_npz import read

    return read(file)
