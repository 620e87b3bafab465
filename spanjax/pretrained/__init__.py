"""Weights with their vocabulary and heads."""
