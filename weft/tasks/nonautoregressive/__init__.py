"""Non-autoregressive translation: mask-predict, glancing, CTC and fertilities."""
