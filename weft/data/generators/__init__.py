"""Generated data for demonstrations and tests: dates, additions, bAbI stories, bit sequences, long-range tasks."""
