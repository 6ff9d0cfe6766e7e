"""An HTTP server for trained runs: the LibreTranslate API, a JSON API with scores and attention, and a web page."""
