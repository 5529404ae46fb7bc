"""Co-Boosting."""
