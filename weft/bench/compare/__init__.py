"""Trains several models under one budget, measures them, and reports them in a table, a chart and a page."""
