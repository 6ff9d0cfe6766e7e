"""Trained runs behind HTTP: LibreTranslate's interface, a JSON interface with everything a search knows, and a web page."""
