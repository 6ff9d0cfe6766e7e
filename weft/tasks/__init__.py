"""Tasks: where batches come from, what is minimised, and how a trained model is scored and used."""

TASKS = {
    "translation": "weft.tasks.translation:TranslationTask",
    "parallel_translation": "weft.tasks.parallel:ParallelTranslationTask",
    "unsupervised": "weft.tasks.unsupervised:UnsupervisedTask",
    "classification": "weft.tasks.classification:ClassificationTask",
    "tagging": "weft.tasks.tagging:TaggingTask",
    "captioning": "weft.tasks.captioning:CaptioningTask",
    "answering": "weft.tasks.answering:AnsweringTask",
    "bits": "weft.tasks.bits:BitsTask",
    "transcription": "weft.tasks.transcription:TranscriptionTask",
    "deciphering": "weft.tasks.deciphering:DecipheringTask",
    "language_model": "weft.tasks.language_model:LanguageModelTask",
}
