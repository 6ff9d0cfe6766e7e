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
    "bergamot": "weft.interop.marian_npz:export_bergamot",
    "peft": "weft.interop.peft_adapter:export",
}
"""The function that writes each format."""

IMPORTS = {
    "marian": "weft.interop.transformers_folder:read",
    "pegasus": "weft.interop.transformers_folder:read",
    "m2m_100": "weft.interop.transformers_m2m100:read",
    ".npz": "weft.interop.marian_npz:read",
}
"""The function that reads a model, by the model_type of transformers or by the ending of a file."""
