"""What `muster bench` runs on every rank; it travels to the hosts by itself and needs nothing there but torch."""
