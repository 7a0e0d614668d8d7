"""`muster bench` on the controller's side: what to measure, and what the measurements mean; pure but for the edges."""
