"""Tasks: where batches come from, what is minimised, and how a trained model is scored and used."""

TASKS = {
    "translation": "weft.tasks.translation.task:TranslationTask",
    "parallel_translation": "weft.tasks.nonautoregressive.task:NonAutoregressiveTranslationTask",
    "unsupervised": "weft.tasks.unsupervised.task:UnsupervisedTask",
    "classification": "weft.tasks.classification.task:ClassificationTask",
    "pairs": "weft.tasks.pairs.task:PairsTask",
    "quality": "weft.tasks.quality.task:QualityTask",
    "reading": "weft.tasks.reading.task:ReadingTask",
    "tagging": "weft.tasks.tagging.task:TaggingTask",
    "captioning": "weft.tasks.captioning.task:CaptioningTask",
    "transcription": "weft.tasks.transcription.task:TranscriptionTask",
    "synthesis": "weft.tasks.synthesis.task:SynthesisTask",
    "language_model": "weft.tasks.language_modeling.task:LanguageModelTask",
}
