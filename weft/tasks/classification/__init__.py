"""Classification of texts and documents: one label or any number of them."""
