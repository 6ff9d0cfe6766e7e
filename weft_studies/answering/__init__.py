"""Question answering over short stories (bAbI), with memory networks."""
