"""Documents that can be translated: plain text, HTML, XLIFF, Word, subtitles."""
