"""Transcription: speech to text, by attention, by CTC or by both, whole or as it comes in."""
