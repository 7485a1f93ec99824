"""One file a provider, behind ``places/base.py``."""
