"""The version, in one place: the package also runs from a source tree that was never installed."""

__version__ = "0.2.0"
