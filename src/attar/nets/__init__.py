"""Architectures for small images, one family per file. Importing this package registers all of them."""
