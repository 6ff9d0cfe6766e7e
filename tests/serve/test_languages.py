"""Language detection among the languages of a server."""

from __future__ import annotations

import pytest

from weft.serve.languages import detect_language

WEST_SLAVIC = ["cs", "pl", "sk", "de", "hsb"]
SORBIAN = [
    "Dataja njeda so wočinić.",
    "Prošu zapodajće swoje hesło.",
    "Nowy rjadowak wutworić",
    "Strona njebu namakana.",
    "Dźensa je rjane wjedro.",
    "Wšitke nastajenja składować",
    "Hdźe je najbliše dwórnišćo?",
    "Ja rěču serbsce a němsce.",
]
KNOWN = {
    "cs": "Soubor nelze otevřít.",
    "pl": "Nie można otworzyć pliku.",
    "sk": "Súbor sa nedá otvoriť.",
    "de": "Datei nicht gefunden.",
    "da": "Filen kunne ikke åbnes.",
    "nb": "Filen kunne ikke åpnes.",
    "pt": "Não foi possível abrir.",
    "es": "No se pudo abrir.",
    "uk": "Не вдалося відкрити файл.",
    "ru": "Не удалось открыть файл.",
    "bg": "Файлът не може да бъде отворен.",
    "hr": "Datoteku nije moguće otvoriti.",
    "sl": "Datoteke ni mogoče odpreti.",
    "et": "Faili ei saa avada.",
    "hu": "A fájl nem nyitható meg.",
    "vi": "Không thể mở tệp.",
}


@pytest.mark.parametrize("text", SORBIAN)
def test_a_language_that_py3langid_does_not_know_is_told_from_its_relatives(text: str) -> None:
    assert detect_language(text, WEST_SLAVIC)[0]["language"] == "hsb"


def test_short_texts_of_languages_that_it_knows_stay_known_beside_others() -> None:
    codes = [*KNOWN, "hsb", "dsb", "ast", "ia", "os", "fur"]
    found = {code: detect_language(text, codes)[0]["language"] for code, text in KNOWN.items()}
    assert sum(found[code] == code for code in KNOWN) >= len(KNOWN) - 2, found


def test_a_language_without_names_is_the_last_choice() -> None:
    assert [each["language"] for each in detect_language("Ein Hund läuft im Park.", ["und", "de"])] == ["de", "und"]
