"""Output of ranks and of Muster: split into lines, shown on the screen, saved in log files."""
