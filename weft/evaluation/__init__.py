"""Metrics, tests of significance, and evaluation reports."""
