"""Building blocks without attention."""
