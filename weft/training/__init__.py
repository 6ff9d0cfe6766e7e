"""The training loop, optimisers, schedules, checkpoints and logs."""

OPTIMIZERS = {
    "adam": "weft.training.optimizer:adam",
    "adamw": "weft.training.optimizer:adamw",
}

SCHEDULES = {
    "noam": "weft.training.schedule:noam",
    "inverse_sqrt": "weft.training.schedule:inverse_sqrt",
    "cosine": "weft.training.schedule:cosine",
    "constant": "weft.training.schedule:constant",
    "slanted_triangular": "weft.training.schedule:slanted_triangular",
}
