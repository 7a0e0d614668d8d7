"""The controller's side of `muster bench`: what to measure, and what the measurements mean; mostly pure functions."""
