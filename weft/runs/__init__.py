"""Run folders: their files, their lock, their weights, and opening a trained run."""
