"""Uploads and a method in, one model out."""
