"""Speech synthesis: texts to recordings, frame by frame, and from frames to sound."""
