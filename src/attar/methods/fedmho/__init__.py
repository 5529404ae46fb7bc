"""FedMHO, FedMHO-MD and FedMHO-SD."""
