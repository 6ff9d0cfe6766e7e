"""Reading: a passage and a question about it, answered by words of the passage."""

READERS = {
    "bidaf": "weft.tasks.reading.model:Bidaf",
    "attention_sum": "weft.tasks.reading.model:AttentionSum",
}
