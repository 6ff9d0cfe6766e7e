"""The training loop, optimisers, schedules, checkpoints and logs."""

OPTIMIZERS = {
    "adam": "weft.training.optimizer:adam",
    "adamw": "weft.training.optimizer:adamw",
}

SCHEDULES = {
    "noam": "weft.training.schedule:Noam",
    "inverse_sqrt": "weft.training.schedule:InverseSquareRoot",
    "cosine": "weft.training.schedule:Cosine",
    "constant": "weft.training.schedule:Constant",
    "slanted_triangular": "weft.training.schedule:SlantedTriangular",
}
