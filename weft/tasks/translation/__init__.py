"""Translation: the task, its predictor, segmentation, glossaries, markup transfer and documents."""
