"""Builds training sessions from a Run: sessions, initial weights, human-readable summaries."""
