"""What ranks and Muster say: split into lines, shown on the screen, kept in files."""
