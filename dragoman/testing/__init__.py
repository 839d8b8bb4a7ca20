"""Checks for the authors of plug-ins: the laws that every part of its kind keeps."""
