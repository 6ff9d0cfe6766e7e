"""Small models, data and servers that several tests share."""
