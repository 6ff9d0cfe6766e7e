"""Formats of files with pairs, beyond text, tables and JSON lines: one module for each.

    memory.tmx     memory.tmx#en,de      a translation memory: two languages of it
    app.po  app.pot                      messages of gettext with their translations
    a.xlf          a.xliff               units of XLIFF 1.2 or 2 with their translations
    book.xlsx      book.xlsx#en,de       two columns of a spreadsheet, as in .csv; `#Sheet2!en,de` chooses a sheet
    x.parquet      x.parquet#en,de       two columns; `translation.en` is a field of a column
    corpus.zip     corpus.zip#en,de      OPUS's archives for Moses: two text files inside, aligned line by line
    film.en.srt,film.de.srt              subtitles (also .vtt), paired by their times

A reader streams its file. `left_out` counts the entries that are no pairs, by reason.
"""

FILE_FORMATS = {
    ".tmx": "weft.data.file_formats.tmx_pairs:TmxPairs",
    ".po": "weft.data.file_formats.gettext_catalog:CatalogPairs",
    ".pot": "weft.data.file_formats.gettext_catalog:CatalogPairs",
    ".xlf": "weft.data.file_formats.xliff_pairs:XliffPairs",
    ".xliff": "weft.data.file_formats.xliff_pairs:XliffPairs",
    ".xlsx": "weft.data.file_formats.spreadsheet_and_parquet:SpreadsheetPairs",
    ".parquet": "weft.data.file_formats.spreadsheet_and_parquet:ParquetPairs",
    ".zip": "weft.data.file_formats.opus_archive:ArchivePairs",
}
"""The class that reads each kind of file: (name, path, the two names after '#' or None) → pairs."""

SUBTITLES = {
    ".srt": "weft.data.file_formats.subtitles:SubtitlePairs",
    ".vtt": "weft.data.file_formats.subtitles:SubtitlePairs",
}
"""The same for two files that are not aligned line by line: (name, source, target) → pairs."""
