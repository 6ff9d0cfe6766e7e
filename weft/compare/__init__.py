"""Several models under one budget: trained, measured, and set side by side in a table, a chart and a page."""
