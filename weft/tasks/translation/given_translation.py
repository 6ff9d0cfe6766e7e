"""A text and its given translation as token ids, to explain or align them."""

from weft.data.batch import EOS
from weft.data.copy_vocabulary import CopyIds
from weft.errors import DataError
from weft.models.nonautoregressive import NonAutoregressiveDecoder
from weft.tasks.translation.predictor import TranslationPredictor
from weft.tasks.translation.segmenter import TextSegment


def encode_source(predictor: TranslationPredictor, text: str) -> TextSegment:
    """Encodes a text for the model. Raises an error if it is blank or too long for one pass."""
    segments = predictor.segments(text)
    if not segments:
        raise DataError("there is nothing to explain in an empty text; give a sentence")
    if len(segments) > 1:
        raise DataError(
            f"the text has more than {predictor.max_source - 1:,} tokens, the most that the model reads at once; "
            "explain its sentences one by one"
        )
    return segments[0]


def encode_target(predictor: TranslationPredictor, target: str, segment: TextSegment) -> list[int]:
    """Encodes a given target, including EOS. Words that can only be copied get the ids they have in the source."""
    ids = [*CopyIds(predictor.target, segment.words).find(target, predictor.target.encode(target)), EOS]
    decoder = predictor.model.decoder
    if isinstance(decoder, NonAutoregressiveDecoder) and decoder.canvases.holds != "ended":
        ids.pop()  # the canvas ends where the text ends
    if not ids:
        raise DataError("there is nothing to explain in an empty target; give a translation")
    limit = predictor.model.max_target
    if limit is not None and len(ids) > limit:
        raise DataError(f"the target has {len(ids):,} tokens, but the model has {limit:,} positions; give a shorter target")
    return ids
