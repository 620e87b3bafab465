"""Rows and masks as text and figures."""
