"""Several rounds of local training and fusion."""
