"""Which hatdfed this is; imports nothing, so that everybody can ask."""

__version__ = "0.2.0.dev0"
