"""What every rank of the deep check runs; it travels to the hosts by itself and needs nothing there but torch."""
