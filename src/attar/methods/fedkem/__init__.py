"""FedKEM."""
