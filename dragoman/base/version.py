"""The package version, read by the build, and the address of the documentation."""

__version__ = "0.1.0"
DOCUMENTATION = "https://OWNER.github.io/dragoman/"
