"""Models of other programs: `weft import` makes runs of them, `weft export` writes runs as they read them.

One module per format. It has a table of names and a few transforms; no format knows another, except that a package of Argos
contains a folder of CTranslate2. `transformer_weights` describes weft's side of all tables.
"""

EXPORTS = {
    "ctranslate2": "weft.interop.ctranslate2_folder:export",
    "transformers": "weft.interop.transformers_folder:export",
    "onnx": "weft.interop.onnx_folder:export",
    "argos": "weft.interop.argos_package:export",
    "marian": "weft.interop.marian_npz:export",
    "peft": "weft.interop.peft_adapter:export",
}
"""The function that writes each format."""
