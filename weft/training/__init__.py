"""The training loop, optimisers, schedules, checkpoints and logs."""

OPTIMIZERS = {
    "adam": "weft.training.optimizer:adam",
    "adamw": "weft.training.optimizer:adamw",
}

SCHEDULES = {
    "noam": "weft.training.lr_schedules:noam",
    "inverse_sqrt": "weft.training.lr_schedules:inverse_sqrt",
    "cosine": "weft.training.lr_schedules:cosine",
    "constant": "weft.training.lr_schedules:constant",
    "slanted_triangular": "weft.training.lr_schedules:slanted_triangular",
}

TRACKERS = {
    "trackio": "weft.training.trackers.trackio:Trackio",
    "wandb": "weft.training.trackers.wandb:Wandb",
    "mlflow": "weft.training.trackers.mlflow:MLflow",
}
