"""FedMITR."""
