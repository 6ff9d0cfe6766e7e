"""Configuration: its sections, the registry of named parts, YAML documents, and the schema of what can be written."""
