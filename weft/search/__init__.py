"""Finding text: one loop for every decoder, and what may be varied in it."""
