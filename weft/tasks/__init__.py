"""What is learned: where batches come from, what is minimised, how a model is scored."""

TASKS = {
    "translation": "weft.tasks.translation:TranslationTask",
    "classification": "weft.tasks.classification:ClassificationTask",
    "language_model": "weft.tasks.language_model:LanguageModelTask",
}

SAMPLINGS = {
    "none": "weft.tasks.sampling:NoSampling",
    "steps": "weft.tasks.sampling:StepSampling",
    "two_pass": "weft.tasks.sampling:TwoPassSampling",
    "parallel": "weft.tasks.sampling:ParallelSampling",
    "free": "weft.tasks.sampling:FreeRunning",
}

DECAYS = {
    "linear": "weft.tasks.sampling:LinearDecay",
    "exponential": "weft.tasks.sampling:ExponentialDecay",
    "inverse_sigmoid": "weft.tasks.sampling:InverseSigmoidDecay",
}
