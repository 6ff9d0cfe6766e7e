"""What a model has to do and how long it takes: operations counted, the machine's ceilings, measured times, a profile."""
