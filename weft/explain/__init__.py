"""Pictures of what a model attends to."""
