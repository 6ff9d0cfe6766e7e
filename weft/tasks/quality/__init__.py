"""Quality estimation: how good a translation is, and which of its words are wrong, from the source and the translation."""
