"""What is learned: where batches come from, what is minimised, how a model is scored."""

TASKS = {
    "translation": "weft.tasks.translation:TranslationTask",
}
